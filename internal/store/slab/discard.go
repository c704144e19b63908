package slab

import (
	"context"
	"sync/atomic"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Discard removes the chunks that keep does not want, but for pinned ones, and says how many that
// were and what the disk got back; dry only counts. keep must be quick, and not
// call the slab. A chunk that is wanted again costs a read of the origin. The error is ctx's,
// or the disk's.
func (s *Slab) Discard(ctx context.Context, keep func(store.Digest) bool, dry bool) (chunks, bytes int64, err error) {
	if err := s.Flush(); err != nil { // what is not synced may not go
		s.log.Warn("chunks could not be kept in the cache", "err", err)
	}
	var unwanted []victim
	s.each(func(id uint32, e *entry) {
		if e.evictable() && !keep(e.digest) {
			unwanted = append(unwanted, victim{id, atomic.LoadUint32(&e.used)})
			bytes += int64(blocks(e.place.size)) * store.BlockSize
		}
	})
	chunks = int64(len(unwanted))
	if dry || chunks == 0 {
		return chunks, bytes, nil
	}
	chunks, bytes = 0, 0
	for len(unwanted) > 0 && ctx.Err() == nil { // bit by bit: writers want room meanwhile
		s.evicting.Lock()
		before := s.counters.evicted.Load()
		bytes += s.retire(&unwanted, evictBlocks) * store.BlockSize
		chunks += s.counters.evicted.Load() - before
		s.reclaim()
		s.evicting.Unlock()
	}
	if err := s.trim(); err != nil {
		return chunks, bytes, store.DiskError(err, "cut slab", s.opts.Dir)
	}
	return chunks, bytes, fault.Wrap(ctx.Err(), "discard from", s.opts.Dir)
}
