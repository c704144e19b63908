package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/server"
)

func (a *app) nodeLeaveCommand() *cobra.Command {
	var end bool
	c := &cobra.Command{
		Use:   "leave",
		Short: "End this machine's part in its cluster",
		Long: `End this machine's part in its cluster: what it knows of the cluster, and the
cluster's keys, are removed. The server must not run meanwhile. The data
directory stays that of the cluster's store, which it can no longer read: go on
with another one.

Exit status: 0, also if the control node does not answer; 3 if the machine is in
no cluster.`,
		Args: cobra.NoArgs,
		RunE: work(func(ctx context.Context, _ []string) error {
			defer a.afterPatience("waiting for the control node")()
			told, err := server.Leave(ctx, a.data, end)
			if err != nil {
				return err
			}
			if !told && !end {
				a.tell("the control node does not answer: remove this machine there, with `brisk node rm`")
			}
			if !a.json {
				return nil
			}
			return a.answer(map[string]bool{"told": told}, func(io.Writer) {})
		}),
	}
	c.Flags().BoolVar(&end, "end-cluster", false, "on the control node: end the cluster for all")
	return c
}
