package slab

import (
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// What was written is synced after flushDelay, so that one sync serves many
// chunks, or after flushBytes (or an eighth of a small slab, since what is not
// synced cannot be evicted), so that it does not become long. That much is fetched
// again after a power loss.
const (
	flushDelay = time.Second
	flushBytes = 64 << 20
)

func (s *Slab) flushBytes() int64 { return min(flushBytes, s.opts.Limit/8) }

// kick wakes the flusher.
func (s *Slab) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// flushLoop flushes until Close.
func (s *Slab) flushLoop() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	armed := false // what waits longest decides
	for {
		select {
		case <-s.stop:
			timer.Stop()
			return
		case <-s.wake:
			s.mu.RLock()
			full := s.pending.bytes >= s.flushBytes()
			s.mu.RUnlock()
			if !full {
				if !armed {
					armed = true
					timer.Reset(flushDelay)
				}
				continue
			}
			timer.Stop()
		case <-timer.C:
		}
		armed = false
		if err := s.Flush(); err != nil {
			s.log.Warn("chunks could not be kept in the cache", "err", err, "hint", fault.HintOf(err))
		}
	}
}

// Flush makes durable what has been written: first the data, then its records.
// If the data cannot be synced, those chunks are dropped, because nobody knows
// which of them the disk has. If there is no room for the records, some chunks make it.
func (s *Slab) Flush() error {
	err := s.flush()
	if fault.Is(err, fault.DiskFull) && s.evict(evictBlocks, nil) > 0 {
		err = s.flush()
	}
	return err
}

func (s *Slab) flush() error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	records := s.pending.records
	s.pending.records, s.pending.bytes = nil, 0
	s.mu.Unlock()
	if len(records) == 0 {
		return nil
	}
	err := s.data.sync()
	b := make([]byte, 0, len(records)*recordSize)
	s.mu.Lock()
	for _, r := range records {
		if r.kind == kindHere {
			id, e := s.table.find(r.digest)
			switch {
			case e == nil || e.place != r.place || !e.here():
			case err == nil:
				e.state |= stateSynced
			case e.fixed > 0:
				e.state = stateDamaged
				s.counters.drops.Add(1)
			default:
				s.forget(id, e)
				s.counters.drops.Add(1)
			}
		}
		b = r.append(b)
	}
	s.mu.Unlock()
	if err != nil {
		return store.DiskError(err, "sync slab", s.opts.Dir)
	}
	return store.DiskError(s.appendIndex(b), "write slab index", s.opts.Dir)
}
