package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/cluster"
)

func (a *app) nodeListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the machines of the cluster",
		Long: `List the machines of the cluster as this one knows them, the control node first:
whether each is alive, when it was last heard of, and what it has served to
others and fetched from them since its server started. A node whose state is
"convicted" has given this machine wrong bytes, and is not asked for any for a
while.

Exit status: 0; 3 if the machine is in no cluster; 7 if no server runs.`,
		Args: cobra.NoArgs,
		RunE: work(a.running(func(ctx context.Context, c *api.Client, _ []string) error {
			l, err := c.Nodes(ctx)
			if err != nil {
				return err
			}
			return a.answer(l, func(w io.Writer) {
				var rows [][]string
				for _, m := range l.Members {
					rows = append(rows, []string{
						m.Name, nodeState(m, l), dash(m.Address), seenText(m, l),
						exchanged(m.Traffic.ServedChunks, m.Traffic.ServedBytes), exchanged(m.Traffic.FetchedChunks, m.Traffic.FetchedBytes),
					})
				}
				table(w, []string{"NODE", "STATE", "ADDRESS", "SEEN", "SERVED", "FETCHED"}, rows)
				switch {
				case l.Age < 0:
					a.tell("this machine does not know the members now: %s", l.Trouble)
				case l.Trouble != "":
					a.tell("the list is %s old: %s", (time.Duration(l.Age) * time.Millisecond).Round(time.Second), l.Trouble)
				}
			})
		})),
	}
}

// nodeState is what is most worth knowing of a member.
func nodeState(m cluster.Member, l api.NodeList) string {
	for _, p := range l.Peers.Peers {
		if p.Name == m.Name && p.State == "convicted" {
			return "convicted"
		}
	}
	switch {
	case !m.Alive && m.Seen < 0:
		return "never seen"
	case !m.Alive:
		return "dead"
	case m.Control:
		return "control"
	}
	return "alive"
}

// seenText is how long ago a member was heard of.
func seenText(m cluster.Member, l api.NodeList) string {
	switch {
	case m.Name == l.Self:
		return "here"
	case m.Control:
		return ago(time.Now().Add(-time.Duration(l.Age) * time.Millisecond))
	case m.Seen < 0:
		return "-"
	}
	return ago(time.Now().Add(-time.Duration(m.Seen+l.Age) * time.Millisecond))
}

func exchanged(chunks, bytes int64) string {
	if chunks == 0 {
		return "-"
	}
	unit := "chunks"
	if chunks == 1 {
		unit = "chunk"
	}
	return fmt.Sprintf("%s %s, %s", count(chunks), unit, bytesText(bytes))
}
