package main

import (
	"context"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) nodeCommand() *cobra.Command {
	return groupOf("node", "Join machines to a cluster, and look at it",
		a.nodeTokenCommand(), a.nodeJoinCommand(), a.nodeListCommand(), a.nodeRemoveCommand(), a.nodeLeaveCommand())
}

// running makes a command's function of one that asks a server, if one runs: a
// server that a command starts would not listen for other machines.
func (a *app) running(fn func(ctx context.Context, c *api.Client, args []string) error) func(ctx context.Context, args []string) error {
	return func(ctx context.Context, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return fn(ctx, c, args)
	}
}
