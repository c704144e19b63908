package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) imageListCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "ls",
		Short: "List images",
		Long: `List images: those with a name, and with --all the nameless ones too, which the
steps of builds have made and the next build of the same steps takes up again.
With --json all are listed.

SIZE is that of all files; OWN is what no other of these images has, also none
without a name, so that removing the image gives back about that much: less, by
compression, in the store. "-" means that it is not known, because a part of an
image's metadata is where nobody answers.`,
		Args: cobra.NoArgs,
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
			l, err := c.Images(ctx)
			if err != nil {
				return err
			}
			return a.answer(l, func(w io.Writer) {
				var rows [][]string
				hidden := 0
				for _, i := range l {
					if i.Name == "" && !all {
						hidden++
						continue
					}
					rows = append(rows, []string{dash(i.Name), i.Digest.Short(), count(i.Files), bytesText(i.Bytes), ownText(i.OwnBytes), ago(i.Created)})
				}
				table(w, []string{"NAME", "DIGEST", "FILES", "SIZE", "OWN", "AGE"}, rows)
				if hidden > 0 {
					a.tell("%s without a name, made by builds, %s not listed: --all lists them", plural(hidden, "image"), map[bool]string{true: "is", false: "are"}[hidden == 1])
				}
			})
		})),
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "list images without a name too")
	return c
}

func ownText(n *int64) string {
	if n == nil {
		return "-"
	}
	return bytesText(*n)
}
