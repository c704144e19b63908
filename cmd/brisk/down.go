package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/server"
)

func (a *app) downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the server with all that it runs",
		Long: `Stop the server of the data directory, with all calls, containers and instances,
and return when its process has ended. A server that does not end is killed. What
a server that was killed has left is removed: processes, control groups, mounts,
network namespaces. The data directory stays. It is no error if no server runs.

Exit status: 0 if nothing is left.`,
		Example: `  brisk down
  brisk down --data /srv/brisk`,
		Args: cobra.NoArgs,
		RunE: work(a.down),
	}
}

func (a *app) down(ctx context.Context, _ []string) error {
	done := a.afterPatience("stopping the server")
	stopped, killed, err := server.Stop(ctx, a.data)
	done()
	if err != nil {
		return err
	}
	if killed {
		a.tell("the server did not end, and was killed")
	}
	left, err := server.HasLeftovers(a.data)
	if err != nil {
		return err
	}
	if left {
		// This executes the program again, from the start, in the namespace where the leftovers are.
		if err := server.EnterNamespace(a.data); err != nil {
			return err
		}
		if err := server.Sweep(ctx, server.Options{Data: a.data, Version: version}); err != nil {
			return err
		}
	}
	if !a.json {
		return nil
	}
	return a.answer(map[string]bool{"stopped": stopped || left}, func(io.Writer) {})
}
