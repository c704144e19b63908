package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
)

func (a *app) psCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ps",
		Short: "List what runs: instances of functions, and containers",
		Long: `List what runs: instances of functions, and containers. It starts no server.

Exit status: 0; 7 if no server runs.`,
		Args: cobra.NoArgs,
		RunE: work(a.ps),
	}
}

func (a *app) ps(ctx context.Context, _ []string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Instances(ctx)
	if err != nil {
		return err
	}
	return a.answer(l, func(w io.Writer) {
		var rows [][]string
		for _, i := range l {
			what := i.Function
			if i.App != "" && what != "" {
				what = i.App + "." + what
			}
			memory := "-"
			if i.MemoryMax > 0 {
				memory = bytesText(i.MemoryMax)
			}
			rows = append(rows, []string{i.ID, dash(what), i.State, dash(i.Start), count(i.Calls), memory, ago(i.Since), short(i.Image)})
		}
		table(w, []string{"ID", "FUNCTION", "STATE", "START", "CALLS", "MEMORY", "SINCE", "IMAGE"}, rows)
	})
}

// short cuts a digest down for people.
func short(digest string) string {
	if len(digest) == 64 {
		return digest[:12]
	}
	return digest
}
