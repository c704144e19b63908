package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/fault"
)

func (a *app) runCommand() *cobra.Command {
	var c containerFlags
	cmd := &cobra.Command{
		Use:   "run FILE[::NAME] [OPTIONS...] | run --image IMAGE [flags] -- [CMD ARGS...]",
		Short: "Run a Python file, or a command in a container",
		Long: `Run a Python file: its local entrypoint, or the function NAME in a sandbox.
Everything after FILE is for the file; options come from the signature. Flags of
brisk come before it.

With --image, run a command (default the image's own) in a sandbox on an image, by
name or digest. Its output streams; its input is brisk's, unless that is a
terminal (-i passes that too). Ctrl-C kills it.

Both start a server in the background if none runs.

Exit status: see "brisk help exit-codes"; with --image the command's own.`,
		Example: `  brisk run stats.py --n 20
  brisk run stats.py::mean --xs '[1, 2, 3]'
  brisk run --image web --memory 256 -- nginx -t`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.image == "" {
				return a.runFile(args, &c, cmd)
			}
			return work(func(ctx context.Context, args []string) error { return a.runImage(ctx, &c, args) })(cmd, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what comes after FILE or CMD is theirs
	c.bind(cmd.Flags())
	return cmd
}

// runFile becomes the host's Python with the SDK.
func (a *app) runFile(args []string, c *containerFlags, cmd *cobra.Command) error {
	if len(args) == 0 {
		return fault.New(fault.Invalid, "run wants a file, or --image").WithHint("`brisk help run` has examples.")
	}
	if name := c.firstUsed(cmd.Flags()); name != "" {
		return fault.New(fault.Invalid, "--%s is for containers", name).
			WithHint("A function says in its decorator what it needs; options of the file come after its name.")
	}
	path, _, _ := cutTarget(args[0])
	if st, err := os.Stat(path); err != nil || st.IsDir() {
		return fault.New(fault.NotFound, "there is no file %s", path)
	}
	ctx, stop := interruptible()
	defer stop()
	py, err := findPython(ctx)
	if err != nil {
		return err
	}
	client, err := a.startedClient(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	if info, err := client.Info(ctx); err == nil && info.Version != version {
		a.tell("the server is version %s, this is %s; `brisk down` lets the next command start a new one", info.Version, version)
	}
	words := append([]string{"run"}, args...)
	if a.json {
		words = append([]string{"run", "--json"}, args...)
	}
	return a.becomePython(py, words)
}
