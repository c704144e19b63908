// Command brisk is Brisk's command line: a server (up), what it does for users
// (run, image), and what it can tell (ps, calls, logs, store, doctor).
//
// This package binds flags to options and prints answers, nothing more: each
// command is in the file of its name, the work is done by packages server and
// api. Answers go to standard output, everything else to standard error; a
// command that has nothing to say on success says nothing. Exit codes are those
// of exit.go, which are part of Brisk's interface, like the output with --json.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// version is set by the linker.
var version = "unknown"

func main() {
	os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// app is what all commands share.
type app struct {
	data      string
	workspace string
	json      bool

	in       io.Reader
	out, err io.Writer
	began    bool // a command's own code runs: an error is no longer one of usage
}

// execute runs one command line and gives its exit code.
func execute(args []string, in io.Reader, out, err io.Writer) int {
	a := &app{in: in, out: out, err: err}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(err)
	cmd, e := root.ExecuteC()
	var exit exitError
	switch {
	case e == nil:
		return exitOK
	case errors.As(e, &exit):
		return int(exit)
	case !a.began && fault.Is(e, fault.Internal):
		e = (&fault.Error{Class: fault.Invalid, Err: e}).WithHint("%s", usageHint(cmd))
	}
	a.json = a.json || slices.Contains(args, "--json") // it may not have got as far as that
	a.complain(e)
	if errors.Is(e, errInterrupted) {
		return exitInterrupted
	}
	return codeOf(e)
}

// usageHint says what would have been right.
func usageHint(cmd *cobra.Command) string {
	if cmd.HasParent() && !cmd.HasSubCommands() {
		return "Usage: " + cmd.UseLine() + "; `brisk help" + strings.TrimPrefix(cmd.CommandPath(), "brisk") + "` says more."
	}
	return "`brisk help` lists the commands, `brisk help COMMAND` says how one is used."
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "brisk",
		Short: "Run Python functions and containers in sandboxes that start fast",
		Long: `Brisk runs Python functions and any container in sandboxes that start in well
under a second: images are loaded as they are read, and a function's warm
process is snapshotted once and restored on every later cold start.`,
		Example: `  brisk run stats.py --n 20
  brisk run --image web -- nginx -v
  brisk calls show 3f2a`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			a.began = true
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.data, "data", os.Getenv("BRISK_DATA"), "`directory` of Brisk's state; also $BRISK_DATA (default /var/lib/brisk)")
	flags.StringVar(&a.workspace, "workspace", or(os.Getenv("BRISK_WORKSPACE"), image.DefaultWorkspace), "`name` of the workspace; also $BRISK_WORKSPACE")
	flags.BoolVar(&a.json, "json", false, "answer in JSON, errors (on standard error) included")
	flags.Lookup("data").DefValue = "" // help is about Brisk, not about this environment
	flags.Lookup("workspace").DefValue = image.DefaultWorkspace
	root.Version = version
	root.SetVersionTemplate("brisk {{.Version}}\n")
	root.SetHelpCommand(helpCommand())
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		a.runCommand(), a.upCommand(), a.downCommand(), a.psCommand(), a.logsCommand(), a.callsCommand(),
		a.imageCommand(), a.storeCommand(), a.nodeCommand(), a.metricsCommand(), a.doctorCommand(), a.versionCommand(), holderCommand(),
		exitCodesTopic(),
	)
	return root
}

// helpCommand is cobra's, but that what it does not know is an error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		RunE: func(c *cobra.Command, args []string) error {
			cmd, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return fault.New(fault.Invalid, "there is no help about %q", strings.Join(args, " ")).
					WithHint("`brisk help` lists the commands and topics.")
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// groupOf makes a command of which only the commands below do something.
func groupOf(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(commands...)
	return c
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// interruptible is a context that ends with SIGINT or SIGTERM. A second signal kills.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// errInterrupted is the end of a command that a signal cut short.
var errInterrupted = &fault.Error{Class: fault.Cancelled, Err: errors.New("interrupted")}

// work makes a command's function of one that wants a context.
func work(fn func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		ctx, stop := interruptible()
		defer stop()
		err := fn(ctx, args)
		if ctx.Err() != nil && fault.Is(err, fault.Cancelled) {
			return errInterrupted
		}
		return err
	}
}
