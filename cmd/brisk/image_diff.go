package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/image"
)

func (a *app) imageDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two images",
		Long: `List the files that differ between two images, from A to B: + added, - removed, ~ changed
and in what; and how many bytes the two share in the store.

Exit status: 0, whether they differ or not; 3 if there is no such image.`,
		Example: `  brisk image diff app:1 app:2
  brisk image diff app:1 app:2 --json`,
		Args: cobra.ExactArgs(2),
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, args []string) error {
			d, err := c.Diff(ctx, api.DiffRequest{A: args[0], B: args[1]})
			if err != nil {
				return err
			}
			return a.answer(d, func(w io.Writer) { writeDifference(w, args[0], args[1], d) })
		})),
	}
}

func writeDifference(w io.Writer, first, second string, d image.Difference) {
	sign := map[image.ChangeKind]string{image.Added: "+", image.Removed: "-", image.Changed: "~"}
	n := map[image.ChangeKind]int64{}
	for _, c := range d.Changes {
		n[c.Kind]++
		fmt.Fprintf(w, "%s %s", sign[c.Kind], printable(c.Path))
		if len(c.What) > 0 {
			fmt.Fprintf(w, " (%s)", strings.Join(c.What, ", "))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%s added, %s removed, %s changed; %s shared, %s only in %s, %s only in %s\n",
		count(n[image.Added]), count(n[image.Removed]), count(n[image.Changed]),
		bytesText(d.SharedBytes), bytesText(d.OwnBytesA), first, bytesText(d.OwnBytesB), second)
}

// printable is a path as it is, unless a terminal would make something else of it.
func printable(path string) string {
	if quoted := fmt.Sprintf("%q", path); quoted[1:len(quoted)-1] != path {
		return quoted
	}
	return path
}
