package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) imageListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List images",
		Args:  cobra.NoArgs,
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
			l, err := c.Images(ctx)
			if err != nil {
				return err
			}
			return a.answer(l, func(w io.Writer) {
				var rows [][]string
				for _, i := range l {
					rows = append(rows, []string{dash(i.Name), i.Digest.Short(), count(i.Files), bytesText(i.Bytes), ago(i.Created)})
				}
				table(w, []string{"NAME", "DIGEST", "FILES", "SIZE", "AGE"}, rows)
			})
		})),
	}
}
