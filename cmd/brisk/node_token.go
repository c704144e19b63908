package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) nodeTokenCommand() *cobra.Command {
	var q api.NodeTokenRequest
	c := &cobra.Command{
		Use:   "token",
		Short: "Make a token with which a machine can join",
		Long: `Make a token with which one machine can join the cluster, and print it. It works
on the control node: the machine whose server was the first to listen. Who has
the token can join, and is then given the keys of all workspaces: pass it on as
you would a password.

Exit status: 0; 2 if this is not the control node, or its store is not one that
others can use; 3 if the machine is in no cluster; 7 if no server runs.`,
		Example: `  brisk up --listen :7720 --store s3://team-images
  brisk node token
  brisk node token --expires 24h --reusable`,
		Args: cobra.NoArgs,
		RunE: work(a.running(func(ctx context.Context, c *api.Client, _ []string) error {
			t, err := c.NodeToken(ctx, q)
			if err != nil {
				return err
			}
			return a.answer(t, func(w io.Writer) {
				fmt.Fprintln(w, t.Token)
				a.tell("join with it until %s: brisk node join TOKEN", t.Expires.Local().Format(time.DateTime))
			})
		})),
	}
	c.Flags().DurationVar(&q.Expires, "expires", time.Hour, "how `long` it is good for, such as 30m or 24h")
	c.Flags().BoolVar(&q.Reusable, "reusable", false, "any number of machines can join with it")
	return c
}
