package server

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
)

// storeAPI measures the store for the API.
type storeAPI struct {
	data   string
	images *image.Images
	origin *origin
	cache  *slab.Slab
	others *company
}

func (a *storeAPI) StoreStats(ctx context.Context) (s api.StoreStats, err error) {
	images, err := a.images.List(ctx, image.DefaultWorkspace)
	if err != nil {
		return s, err
	}
	seen := map[store.Digest]bool{} // an image may have several names
	for _, i := range images {
		if !seen[i.Digest] {
			seen[i.Digest] = true
			s.Images++
			s.ImageBytes += i.Manifest.Bytes
		}
	}
	unreachable := a.origin.List(ctx, "", func(o store.Object) error {
		s.OriginBytes += o.Size
		if strings.Contains(o.Key, "/packs/") {
			s.Packs++
		}
		return nil
	})
	if unreachable != nil { // what is local is worth knowing all the same
		s.OriginBytes, s.Packs = 0, 0
	}
	s.Origin = a.origin.state(unreachable)
	c := a.cache.Stats()
	s.Cache = api.CacheUse{
		Chunks: c.Chunks, Bytes: c.Bytes, Limit: c.Limit, Pinned: c.Pinned, Disk: c.Disk,
		Hits: c.Hits, Misses: c.Misses, Drops: c.Drops, Writes: c.Writes,
		Evicted: c.Evicted, EvictedBytes: c.EvictedBytes, Refused: c.Refused,
		Scrub: scrubbed(a.cache.Coverage()),
	}
	if a.others != nil {
		p := a.others.peers.Stats()
		s.Peers = &p
	}
	var st unix.Statfs_t
	if err := unix.Statfs(a.data, &st); err != nil {
		return s, fault.Wrap(err, "measure", a.data)
	}
	s.DiskFree = int64(st.Bavail) * st.Bsize
	return s, nil
}

func scrubbed(c slab.Coverage) api.Scrubbed {
	s := api.Scrubbed{Done: c.Done, Total: c.Total}
	if !c.Began.IsZero() {
		s.Began = &c.Began
	}
	if !c.Ended.IsZero() {
		s.Ended = &c.Ended
	}
	return s
}

// The chunk cache takes a tenth of the disk that it is on unless told otherwise:
// enough for the parts of images that are used, small enough to be no surprise.
const (
	cacheShare    = 10
	smallestCache = 2 << 30
	largestCache  = 100 << 30

	reserveShare   = 20
	largestReserve = 1 << 30
)

func cacheLimit(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return smallestCache
	}
	return min(max(int64(st.Blocks)*st.Bsize/cacheShare, smallestCache), largestCache)
}

// cacheReserve is what the cache leaves free of the disk: what people ask for, images
// and calls, needs it more than what can be fetched again.
func cacheReserve(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return min(int64(st.Blocks)*st.Bsize/reserveShare, largestReserve)
}
