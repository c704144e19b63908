package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

// originText says where the store is, and what is in it or why that is not known.
func originText(s api.StoreStats) string {
	text := fmt.Sprintf("%s, %s packs", bytesText(s.OriginBytes), count(s.Packs))
	if s.Origin.URL != "" {
		text += " in " + s.Origin.URL
	}
	if !s.Origin.Up && s.Origin.Error != "" {
		text = s.Origin.URL + " does not answer: " + s.Origin.Error
		if s.Origin.Hint != "" {
			text += ". " + s.Origin.Hint
		}
		return text
	}
	if n := s.Origin; n.Requests > 0 {
		text += fmt.Sprintf("; %s requests, %s failed, %s again, %s doubled", count(n.Requests), count(n.Failures), count(n.Retries), count(n.Hedges))
	}
	return text
}

func (a *app) storeCommand() *cobra.Command {
	return groupOf("store", "Look at what is stored, tidy it, and keep its keys", a.storeStatsCommand(), a.storeGCCommand(), a.storeFsckCommand(), a.storeKeyCommand())
}

func (a *app) storeStatsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Say how much is stored, and how much of it is shared",
		Args:  cobra.NoArgs,
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
			s, err := c.StoreStats(ctx)
			if err != nil {
				return err
			}
			return a.answer(s, func(w io.Writer) {
				fields(w,
					"images", fmt.Sprintf("%s with %s of files", count(s.Images), bytesText(s.ImageBytes)),
					"origin", originText(s),
					"cache", fmt.Sprintf("%s of %s, %s chunks", bytesText(s.Cache.Bytes), bytesText(s.Cache.Limit), count(s.Cache.Chunks)),
					"cache reads", fmt.Sprintf("%s hits, %s misses, %s damaged", count(s.Cache.Hits), count(s.Cache.Misses), count(s.Cache.Drops)),
					"disk", bytesText(s.DiskFree)+" free")
				if s.Peers != nil {
					printPeers(w, s.Peers)
				}
			})
		})),
	}
}
