package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/server"
)

func (a *app) nodeJoinCommand() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "join TOKEN",
		Short: "Make this machine a node of a cluster",
		Long: `Make this machine a node of the cluster whose control node made the token. From
its next start on the server uses the cluster's store, with credentials of its
own from the usual places, and fetches chunks from other machines before it asks
the store. The server must not run meanwhile, and the data directory must have
no images in a store of its own.

The token goes only to a machine that proves to be the cluster's control node.
If something fails, the same command may be given again.

Exit status: 0; 2 if the token is not good or the machine is in a cluster
already; 7 if the control node does not answer.`,
		Example: `  brisk node join brisk1_...
  brisk up --listen :7720`,
		Args: cobra.ExactArgs(1),
		RunE: work(func(ctx context.Context, args []string) error {
			defer a.afterPatience("waiting for the control node")()
			place, err := server.Join(ctx, server.JoinOptions{Data: a.data, Node: name, Token: args[0]})
			if err != nil {
				return err
			}
			return a.answer(map[string]string{"name": place.Name, "store": place.Origin}, func(w io.Writer) {
				fmt.Fprintf(w, "%s is a node of the cluster; its store is %s\n", place.Name, place.Origin)
				a.tell("`brisk up --listen :7720` starts it, so that others can fetch from it too")
			})
		}),
	}
	c.Flags().StringVar(&name, "node", "", "`name` of this machine in the cluster (default its host name)")
	return c
}
