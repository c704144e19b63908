package image

import (
	"context"

	"brisk.dev/brisk/internal/store"
)

// fillStep is how many chunks Fill asks for between two looks at the room that
// is left: 8 MiB.
const fillStep = 64

// Local is how much of the image is in the machine's cache. The chunks may turn
// out to be damaged.
func (i *Image) Local(ctx context.Context, cache store.Cache) (l Local, err error) {
	blocks, err := i.Blocks(ctx)
	if err != nil {
		return l, err
	}
	for _, c := range blocks.dev.chunks {
		l.Total++
		l.TotalBytes += int64(c.Size)
		if cache.Has(c.Digest) {
			l.Chunks++
			l.Bytes += int64(c.Size)
		}
	}
	return l, nil
}

// Local counts the chunks of an image that are in the machine's cache.
type Local struct {
	Chunks, Bytes     int64
	Total, TotalBytes int64 // of the image
}

// Fill fetches what the cache lacks of the image, below all reads that somebody
// waits for, and in the order of the device, so that files lie there as they will be
// read. It stops when the cache would have to evict for more, and reports whether
// nothing is missing any more.
func (i *Image) Fill(ctx context.Context, cache store.Cache) (complete bool, err error) {
	blocks, err := i.Blocks(ctx)
	if err != nil {
		return false, err
	}
	before := cache.Stats()
	for rest := blocks.dev.chunks; len(rest) > 0; {
		var step []store.Chunk
		for len(rest) > 0 && len(step) < fillStep {
			if !cache.Has(rest[0].Digest) {
				step = append(step, rest[0])
			}
			rest = rest[1:]
		}
		if len(step) == 0 {
			break
		}
		if now := cache.Stats(); !roomy(now) || now.Evicted > before.Evicted || now.Refused > before.Refused {
			return false, nil
		}
		if _, err := i.store.Prefetch(ctx, step); err != nil {
			return false, i.wrap(err, "fetch the rest of")
		}
	}
	l, err := i.Local(ctx, cache)
	return l.Chunks == l.Total, err
}

// roomy reports whether a cache can take more without evicting, and keeps some
// for what is asked for.
func roomy(s store.CacheStats) bool {
	const step = fillStep * store.ChunkSize
	return s.Limit == 0 || s.Bytes+max(s.Limit/16, step) <= s.Limit
}
