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

// scrubText says what of the cache has been read from the disk and verified.
func scrubText(s api.Scrubbed) string {
	text := "not yet"
	if s.Ended != nil {
		text = "all of it " + ago(*s.Ended) + " ago"
	}
	if s.Began != nil {
		text += fmt.Sprintf("; %s of %s since %s", bytesText(s.Done), bytesText(s.Total), s.Began.Local().Format("2 Jan 15:04"))
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
					"cache", fmt.Sprintf("%s of %s, %s chunks; mounted images keep %s", bytesText(s.Cache.Bytes), bytesText(s.Cache.Limit), count(s.Cache.Chunks), bytesText(s.Cache.Pinned)),
					"cache on disk", bytesText(s.Cache.Disk),
					"cache reads", fmt.Sprintf("%s hits, %s misses, %s damaged", count(s.Cache.Hits), count(s.Cache.Misses), count(s.Cache.Drops)),
					"cache evicted", fmt.Sprintf("%s chunks, %s; %s not kept", count(s.Cache.Evicted), bytesText(s.Cache.EvictedBytes), count(s.Cache.Refused)),
					"cache verified", scrubText(s.Cache.Scrub),
					"disk", bytesText(s.DiskFree)+" free")
				if s.Peers != nil {
					printPeers(w, s.Peers)
				}
			})
		})),
	}
}
