package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
)

func (a *app) storeGCCommand() *cobra.Command {
	var q api.CollectRequest
	var grace time.Duration
	c := &cobra.Command{
		Use:   "gc",
		Short: "Delete what nobody needs",
		Long: `Delete what nobody needs: content that no image names, what builds left behind and have
not used for a week, uploads, code and snapshots of functions that no program
registers any more. A server does that by itself, after it has started and once an
hour; this does it now, and says what came of it.

What work in progress or a mounted image needs is never deleted. With the images in
a bucket that several machines share, what nobody needs stays for a grace period.

Exit status: 0, also if some of it could not be deleted: a note says what and why.`,
		Example: `  brisk store gc --dry-run
  brisk store gc --json | jq .bytes`,
		Args: cobra.NoArgs,
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
			if grace < 0 {
				return fault.New(fault.Invalid, "--grace %v: want a duration such as 30m", grace)
			}
			q.Grace = grace.Seconds()
			return a.collect(ctx, c, q)
		})),
	}
	c.Flags().BoolVar(&q.DryRun, "dry-run", false, "delete nothing, and say what would be deleted")
	c.Flags().DurationVar(&grace, "grace", 0, "how long what nobody needs stays in a bucket that machines share, at least 10m (default 1h)")
	return c
}

func (a *app) collect(ctx context.Context, c *api.Client, q api.CollectRequest) error {
	done := a.afterPatience("still looking for what nobody needs ...")
	r, err := c.Collect(ctx, q, nil)
	done()
	if err != nil {
		return err
	}
	for _, n := range r.Notes {
		a.tell("%s", n)
	}
	return a.answer(r, func(w io.Writer) { writeCollected(w, r) })
}

func writeCollected(w io.Writer, r api.Collected) {
	verb := "freed"
	if r.DryRun {
		verb = "would free"
	}
	if len(r.Freed) > 0 {
		var rows [][]string
		for _, g := range r.Freed {
			rows = append(rows, []string{g.Kind, count(g.Count), dashZero(g.Bytes)})
		}
		table(w, []string{"KIND", "COUNT", "BYTES"}, rows)
	}
	fmt.Fprintf(w, "%s %s in %s\n", verb, bytesText(r.Bytes), ms(r.MS))
	if r.Waiting.Count > 0 {
		fmt.Fprintf(w, "%s, %s, will go after their grace period\n", plural(int(r.Waiting.Count), "object"), bytesText(r.Waiting.Bytes))
	}
	if r.Held.Count > 0 {
		fmt.Fprintf(w, "%s, %s, are held by work in progress or mounted images\n", plural(int(r.Held.Count), "object"), bytesText(r.Held.Bytes))
	}
}

// dashZero writes a size, or a dash if it was not counted.
func dashZero(n int64) string {
	if n == 0 {
		return "-"
	}
	return bytesText(n)
}
