package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) callsCommand() *cobra.Command {
	var limit int
	list := func() *cobra.Command {
		c := &cobra.Command{
			Use:   "ls",
			Short: "List the latest calls, newest first",
			Args:  cobra.NoArgs,
			RunE: work(a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
				return a.listCalls(ctx, c, limit)
			})),
		}
		c.Flags().IntVar(&limit, "limit", 0, "at most this `number` (default 50)")
		return c
	}
	c := list()
	c.Use, c.Short = "calls", "List calls, or explain one"
	c.Long = `List the latest calls, newest first. "brisk calls show ID" explains where one
call's time went.

Exit status: 0; 3 if there is no such call.`
	c.Example = "  brisk calls --limit 10\n  brisk calls show 3f2a"
	show := &cobra.Command{
		Use:   "show ID",
		Short: "Show one call and its steps in milliseconds",
		Long: `Show one call, by its ID or the beginning of it: how its instance started, what it
read of its image, and its steps as bars over time.

Exit status: 0; 3 if there is no such call.`,
		Args: cobra.ExactArgs(1),
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, args []string) error {
			r, err := c.CallByID(ctx, args[0])
			if err != nil {
				return err
			}
			return a.answer(r, func(w io.Writer) { writeCall(w, r, width(w)) })
		})),
	}
	c.AddCommand(list(), show)
	return c
}

func (a *app) listCalls(ctx context.Context, c *api.Client, limit int) error {
	l, err := c.Calls(ctx, limit)
	if err != nil {
		return err
	}
	return a.answer(l, func(w io.Writer) {
		var rows [][]string
		for _, r := range l {
			what := r.Function
			if r.App != "" {
				what = r.App + "." + what
			}
			rows = append(rows, []string{r.ID, dash(what), string(r.State), dash(r.Start), ms(r.MS), ago(r.Created)})
		}
		table(w, []string{"ID", "FUNCTION", "STATE", "START", "TIME", "AGO"}, rows)
	})
}
