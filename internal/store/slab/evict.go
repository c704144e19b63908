package slab

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

const (
	// evictBlocks is what an eviction frees at least (4 MiB): one of 32 writes
	// does it, in a millisecond or two.
	evictBlocks = 1024
	// measureBytes is how much may be written before the filesystem is looked at again.
	measureBytes = 1 << 20
	// chooseShare is the part of the slab that is chosen at once to be evicted, bit by bit.
	chooseShare = 64
)

// Evict removes the chunks that were used least, until so many bytes of the disk
// are free or nothing is left that may go. What is not synced yet is made so that it may.
// The error is ctx's.
func (s *Slab) Evict(ctx context.Context, bytes int64) (freed int64, err error) {
	if err := s.Flush(); err != nil {
		s.log.Warn("chunks could not be kept in the cache", "err", err)
	}
	want := (bytes + store.BlockSize - 1) / store.BlockSize
	var blocks int64
	for blocks < want && ctx.Err() == nil {
		n := s.evict(min(want-blocks, evictBlocks), nil)
		if n == 0 {
			break
		}
		blocks += n
	}
	if err := s.trim(); err != nil {
		return blocks * store.BlockSize, store.DiskError(err, "cut slab", s.opts.Dir)
	}
	return blocks * store.BlockSize, fault.Wrap(ctx.Err(), "evict from", s.opts.Dir)
}

// makeRoom evicts until need blocks can be given out, if that is not far: it is
// a reader who waits for his chunk to be kept.
func (s *Slab) makeRoom(need int64) {
	s.mu.RLock()
	missing := s.extents.used + need - s.room
	s.mu.RUnlock()
	if missing > 0 && missing <= evictBlocks {
		s.evict(max(missing, min(evictBlocks, s.opts.Limit/store.BlockSize/16)), func() bool { return s.extents.used+need <= s.room })
	}
}

// measure finds out how much may be given out as the filesystem is now.
func (s *Slab) measure() {
	s.unmeasured.Store(0)
	free := int64(math.MaxInt64)
	if s.opts.Reserve > 0 {
		var err error
		if free, _, err = s.disk.free(); err != nil {
			s.log.Warn("nobody knows how full the filesystem is", "dir", s.opts.Dir, "err", err)
			return
		}
		free -= s.opts.Reserve
	}
	s.mu.Lock()
	s.room = min(s.opts.Limit/store.BlockSize, s.extents.used+free/store.BlockSize)
	crowded := s.extents.used > s.room
	s.mu.Unlock()
	if crowded {
		select {
		case s.crowded <- struct{}{}:
		default:
		}
	}
}

// measureEvery is how often the filesystem is looked at while nothing is
// written: others fill it too.
const measureEvery = 30 * time.Second

// yieldLoop makes way for what others write to the filesystem, until Close.
func (s *Slab) yieldLoop() {
	ticker := time.NewTicker(measureEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
			s.measure()
		case <-s.crowded:
			s.yield()
		}
	}
}

// yield evicts what is more than there is room for.
func (s *Slab) yield() {
	for {
		s.mu.RLock()
		excess := s.extents.used - s.room
		s.mu.RUnlock()
		if excess <= 0 || s.evict(min(excess, evictBlocks), nil) == 0 {
			return
		}
	}
}

// evict frees at least want blocks, if so many may go, and says how many. If
// enough, asked under mu, is met by what another eviction has just freed, it does nothing.
func (s *Slab) evict(want int64, enough func() bool) (freed int64) {
	s.evicting.Lock()
	defer s.evicting.Unlock()
	if s.reclaim(); enough != nil {
		s.mu.RLock()
		ok := enough()
		s.mu.RUnlock()
		if ok {
			return 0
		}
	}
	for chosen := false; freed < want; {
		if len(s.victims) == 0 {
			if chosen {
				break
			}
			chosen = true
			s.mu.RLock()
			used := s.extents.used
			s.mu.RUnlock()
			s.victims = s.choose(max(want, used/chooseShare))
		}
		freed += s.retire(&s.victims, want-freed)
	}
	s.reclaim()
	return freed
}

// retire takes victims from the front of a list and out of the table, a few at a
// time, until want blocks are retired or there are no more.
func (s *Slab) retire(victims *[]victim, want int64) (retired int64) {
	for len(*victims) > 0 && retired < want {
		s.mu.Lock()
		if s.closed {
			*victims = nil
		}
		n := 0
		for ; n < len(*victims) && n < 64 && retired < want; n++ {
			v := (*victims)[n]
			e := s.table.at(v.id)
			if !e.evictable() || e.used != v.used {
				continue
			}
			x := e.place.extent()
			s.counters.evicted.Add(1)
			s.counters.evictedBytes.Add(int64(x.count) * store.BlockSize)
			retired += int64(x.count)
			s.retired = append(s.retired, x)
			s.forget(v.id, e)
		}
		s.mu.Unlock()
		*victims = (*victims)[n:]
	}
	return retired
}

// punchBlocks bounds a hole (16 MiB): the filesystem keeps readers of the file out while it makes one.
const punchBlocks = 4096

// reclaim gives places that were retired to the disk and to the next who needs some,
// when the last of their readers has gone. It is called with evicting held.
func (s *Slab) reclaim() {
	s.mu.Lock()
	retired, before := s.retired, s.epoch
	if len(retired) == 0 {
		s.mu.Unlock()
		return
	}
	s.retired, s.epoch = nil, 1-s.epoch
	s.mu.Unlock()
	// Nobody comes to the epoch before any more.
	s.grace[before].Lock()
	s.grace[before].Unlock() //nolint:staticcheck // empty on purpose: it waits

	for _, x := range merge(retired) {
		for x.count > 0 {
			part := extent{x.block, min(x.count, punchBlocks)}
			if err := s.data.punch(int64(part.block)*store.BlockSize, int64(part.count)*store.BlockSize); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
				s.log.Warn("the disk is not given back what an evicted chunk took of it", "block", part.block, "err", err)
			}
			s.mu.Lock()
			s.extents.give(part)
			s.mu.Unlock()
			x = extent{x.block + part.count, x.count - part.count}
		}
	}
}

// merge sorts runs and joins those that touch.
func merge(runs []extent) []extent {
	slices.SortFunc(runs, func(x, y extent) int { return cmp.Compare(x.block, y.block) })
	merged := runs[:0]
	for _, x := range runs {
		if n := len(merged); n > 0 && x.block == merged[n-1].end() {
			merged[n-1].count += x.count
			continue
		}
		merged = append(merged, x)
	}
	return merged
}
