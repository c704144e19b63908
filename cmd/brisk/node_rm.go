package main

import (
	"context"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) nodeRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NODE...",
		Short: "Remove machines from the cluster",
		Long: `Remove machines from the cluster: the control node refuses them at once, the
others within seconds. Reusable tokens are withdrawn, so that a removed machine
cannot come back with one. What the machine knows it keeps, the workspaces' keys
among it: if it is in wrong hands, they have to be replaced. It works on the
control node.

Exit status: 0; 2 if this is not the control node; 3 if there is no such node; 7
if no server runs.`,
		Args: cobra.MinimumNArgs(1),
		RunE: work(a.running(func(ctx context.Context, c *api.Client, args []string) error {
			for _, name := range args {
				r, err := c.RemoveNode(ctx, name)
				if err != nil {
					return err
				}
				if r.WithdrawnTokens > 0 {
					a.tell("%s withdrawn", plural(r.WithdrawnTokens, "reusable token"))
				}
			}
			return nil
		})),
	}
}
