package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/server"
)

func (a *app) storeKeyCommand() *cobra.Command {
	return groupOf("key", "Back up the keys of workspaces, and bring them to other machines",
		a.storeKeyExportCommand(), a.storeKeyImportCommand())
}

func (a *app) storeKeyExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export [WORKSPACE]",
		Short: "Print the key of a workspace",
		Long: `Print the key of a workspace (default "default") as one line. What the workspace keeps in a
bucket can be read with it, and with nothing else: keep a copy where neither the
bucket nor this machine is, and let nobody see it.

Exit status: 0; 3 if the workspace has no key here.`,
		Example: `  brisk store key export > brisk-default.key
  brisk store key export default | ssh HOST brisk store key import`,
		Args: cobra.MaximumNArgs(1),
		RunE: work(func(_ context.Context, args []string) error {
			workspace := a.workspace
			if len(args) > 0 {
				workspace = args[0]
			}
			ring, err := server.OpenKeyring(a.data)
			if err != nil {
				return err
			}
			line, err := ring.Export(workspace)
			if err != nil {
				return err
			}
			return a.answer(map[string]string{"workspace": workspace, "key": line[:len(line)-1]}, func(w io.Writer) { fmt.Fprint(w, line) })
		}),
	}
}

func (a *app) storeKeyImportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import",
		Short: "Put the key of a workspace in here",
		Long: `Read a key, as "brisk store key export" prints it, from standard input, and keep it in the data
directory. A server that is running has it when it is started again. Another key that
the workspace has here is not replaced.

Exit status: 0; 2 if it is not a key, or the workspace has another one.`,
		Example: `  brisk store key import < brisk-default.key`,
		Args:    cobra.NoArgs,
		RunE: work(func(context.Context, []string) error {
			const most = 4096
			b, err := io.ReadAll(io.LimitReader(a.in, most))
			if err != nil {
				return fault.Wrap(err, "read", "standard input")
			}
			ring, err := server.OpenKeyring(a.data)
			if err != nil {
				return err
			}
			workspace, err := ring.Import(string(b))
			if err != nil {
				return err
			}
			keys, err := ring.Find(workspace)
			if err != nil {
				return err
			}
			return a.answer(map[string]string{"workspace": workspace, "id": keys.ID().String()}, func(w io.Writer) {
				fmt.Fprintf(w, "workspace %s has the key %s here\n", workspace, keys.ID())
			})
		}),
	}
}
