package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/scheduler"
)

func (a *app) logsCommand() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:   "logs [CALL|FUNCTION]",
		Short: "Print what calls have printed",
		Long: `Print what calls have printed, oldest first: of one call as it was, of a function
or of all with time and call before each line. The first MiB of a call's output is
kept, of the latest 2,000 calls.

Exit status: 0; 3 if there is no such call or function.`,
		Example: `  brisk logs 3f2a
  brisk logs mean --limit 20`,
		Args: cobra.MaximumNArgs(1),
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, args []string) error {
			return a.logs(ctx, c, args, limit)
		})),
	}
	c.Flags().IntVar(&limit, "limit", 0, "at most this `number` of pieces of output, the latest (default 1000)")
	return c
}

func (a *app) logs(ctx context.Context, c *api.Client, args []string, limit int) error {
	f := scheduler.LogFilter{Limit: limit}
	if len(args) == 1 {
		switch call, err := c.CallByID(ctx, args[0]); {
		case err == nil:
			f.Call = call.ID
		case fault.Is(err, fault.NotFound):
			f.Function = args[0]
		default:
			return err
		}
	}
	lines, err := c.Logs(ctx, f)
	if err != nil {
		return err
	}
	if f.Function != "" && len(lines) == 0 {
		if known, err := a.ran(ctx, c, f.Function); err != nil || !known {
			return fault.New(fault.NotFound, "there is no call %q, and no function of that name was called", f.Function)
		}
	}
	return a.answer(lines, func(w io.Writer) {
		if f.Call != "" {
			for _, l := range lines {
				_, _ = io.WriteString(w, l.Text)
			}
			return
		}
		for _, l := range lines {
			head := fmt.Sprintf("%s %s %s", l.Time.Local().Format("2006-01-02 15:04:05"), dash(l.Function), short12(l.Call))
			for line := range strings.SplitSeq(strings.TrimSuffix(l.Text, "\n"), "\n") {
				fmt.Fprintf(w, "%s  %s\n", head, line)
			}
		}
	})
}

// ran reports whether a function, by name or digest, is among the calls that are remembered.
func (a *app) ran(ctx context.Context, c *api.Client, function string) (bool, error) {
	calls, err := c.Calls(ctx, 10_000)
	for _, r := range calls {
		if r.Function == function || strings.HasPrefix(r.Digest.String(), function) {
			return true, nil
		}
	}
	return false, err
}

// short12 cuts an ID down for people.
func short12(id string) string { return id[:min(len(id), 12)] }
