package slab

import (
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/store"
)

// What was written is synced after flushDelay, so that one sync serves many
// chunks, or after flushBytes, so that it does not become long. That much is
// fetched again after a power loss.
const (
	flushDelay = time.Second
	flushBytes = 64 << 20
)

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
	for {
		select {
		case <-s.stop:
			return
		case <-s.wake:
			s.mu.RLock()
			full := s.pending.bytes >= flushBytes
			s.mu.RUnlock()
			if !full {
				timer.Reset(flushDelay)
				continue
			}
			timer.Stop()
		case <-timer.C:
		}
		if err := s.Flush(); err != nil {
			s.log.Warn("chunks could not be kept in the cache", "err", err)
		}
	}
}

// Flush makes durable what has been written: first the data, then its records.
// If the data cannot be synced, those chunks are dropped, because nobody knows
// which of them the disk has.
func (s *Slab) Flush() error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	records := s.pending.records
	s.pending.records, s.pending.bytes = nil, 0
	s.mu.Unlock()
	if len(records) == 0 {
		return nil
	}
	if err := unix.Fdatasync(int(s.data.Fd())); err != nil {
		s.mu.Lock()
		for _, r := range records {
			if r.kind == kindPut && s.places[r.digest].block == r.block {
				delete(s.places, r.digest)
				s.drops.Add(1)
			}
		}
		s.mu.Unlock()
		return store.DiskError(err, "sync slab", s.dir)
	}
	if s.index == nil {
		return nil
	}
	b := make([]byte, 0, len(records)*recordSize)
	for _, r := range records {
		b = r.append(b)
	}
	if n, err := s.index.Write(b); err != nil {
		// Part of a record would shift all that follow.
		if st, statErr := s.index.Stat(); statErr != nil || s.index.Truncate(st.Size()-int64(n)%recordSize) != nil {
			s.index.Close()
			s.index = nil
		}
		return store.DiskError(err, "write slab index", s.dir)
	}
	return nil
}

// Close flushes and closes. Reads in progress may fail.
func (s *Slab) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	s.done.Wait()
	err := s.Flush()
	s.flushing.Lock()
	defer s.flushing.Unlock()
	if s.index != nil {
		if syncErr := s.index.Sync(); err == nil {
			err = syncErr
		}
		s.index.Close()
	}
	if closeErr := s.data.Close(); err == nil {
		err = closeErr
	}
	return err
}
