package slab

import (
	"errors"
	"os"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Read implements store.Cache.
func (s *Slab) Read(c store.Chunk, dst []byte) (bool, error) {
	if len(dst) != int(c.Size) {
		return false, fault.New(fault.Invalid, "read chunk %s into %d bytes", c, len(dst))
	}
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return false, errClosed()
	}
	_, e := s.table.find(c.Digest)
	if e == nil || !e.here() || e.place.size != c.Size {
		s.mu.RUnlock()
		s.counters.misses.Add(1)
		return false, nil
	}
	p, checked := e.place, e.state&stateChecked != 0
	s.clock.touch(&e.used)
	// From here the place is nobody else's until grace is let go.
	grace := &s.grace[s.epoch]
	grace.RLock()
	s.mu.RUnlock()
	_, err := s.data.read(dst, p.offset())
	grace.RUnlock()
	if err != nil {
		if errors.Is(err, os.ErrClosed) {
			return false, errClosed()
		}
		s.damaged(c.Digest, p, err)
		s.counters.misses.Add(1)
		return false, nil
	}
	if !checked {
		if store.Sum(dst) != c.Digest {
			s.damaged(c.Digest, p, errMismatch)
			s.counters.misses.Add(1)
			return false, nil
		}
		s.checked(c.Digest, p)
	}
	s.counters.hits.Add(1)
	return true, nil
}

// piece is a part of a run that lies in one piece.
type piece struct {
	at  int64 // in the slab's file
	dst []byte
}

// ReadRun implements store.Cache. Chunks that were written one after the other lie
// so, and are read at once.
func (s *Slab) ReadRun(chunks []store.Chunk, dst []byte, off int64) bool {
	if off < 0 {
		return false
	}
	var few [8]piece
	pieces, rest, start := few[:0], dst, off
	s.mu.RLock()
	for _, c := range chunks {
		_, e := s.table.find(c.Digest)
		if s.closed || e == nil || !e.here() || e.state&stateChecked == 0 || e.place.size != c.Size {
			s.mu.RUnlock()
			return false
		}
		s.clock.touch(&e.used)
		length := int64(e.place.extent().count) * store.BlockSize
		if off >= length {
			off -= length
			continue
		}
		n := min(int64(len(rest)), length-off)
		at := e.place.offset() + off
		if l := len(pieces) - 1; l >= 0 && pieces[l].at+int64(len(pieces[l].dst)) == at {
			pieces[l].dst = pieces[l].dst[:len(pieces[l].dst)+int(n)] // dst goes on behind it
		} else {
			pieces = append(pieces, piece{at, rest[:n]})
		}
		rest, off = rest[n:], 0
	}
	if len(rest) > 0 {
		s.mu.RUnlock()
		return false
	}
	grace := &s.grace[s.epoch]
	grace.RLock()
	s.mu.RUnlock()
	defer grace.RUnlock()
	for _, p := range pieces {
		if len(p.dst) == 0 {
			continue
		}
		if _, err := s.data.read(p.dst, p.at); err != nil {
			return false // Read finds out what is wrong
		}
	}
	clearPadding(chunks, dst, start)
	s.counters.hits.Add(int64(len(chunks)))
	return true
}

// clearPadding makes zeros of what lies between chunks, which no digest vouches for.
func clearPadding(chunks []store.Chunk, dst []byte, off int64) {
	within := func(at int64) int64 { return max(0, min(at-off, int64(len(dst)))) }
	at := int64(0)
	for _, c := range chunks {
		end := at + int64(c.Size)
		at += int64(blocks(c.Size)) * store.BlockSize
		clear(dst[within(end):within(at)])
	}
}

var errMismatch = errors.New("its content does not match its digest")

// checked remembers that the bytes at p are right.
func (s *Slab) checked(d store.Digest, p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, e := s.table.find(d); e != nil && e.place == p && e.here() {
		e.state |= stateChecked | stateSound
	}
}

// damaged forgets a chunk whose bytes are wrong or cannot be read. Its place stays
// taken until the next opening: it may be the disk. One that is fixed stays where it
// is, and counts as absent until it is written again.
func (s *Slab) damaged(d store.Digest, p place, why error) (fixed bool) {
	s.mu.Lock()
	id, e := s.table.find(d)
	if e == nil || e.place != p || !e.here() {
		s.mu.Unlock()
		return false
	}
	if fixed = e.fixed > 0; fixed {
		e.state = e.state&stateSynced | stateDamaged
	} else {
		s.forget(id, e)
	}
	s.mu.Unlock()
	s.counters.drops.Add(1)
	if fixed {
		s.log.Error("a cached chunk is damaged that natively mounted images read", "chunk", d, "block", p.block, "err", why)
		return true
	}
	s.log.Warn("a cached chunk is damaged and was dropped", "chunk", d, "block", p.block, "err", why)
	return false
}

// forget takes a chunk out of the table. Who calls, under mu, says what becomes of the place.
func (s *Slab) forget(id uint32, e *entry) {
	s.note(e.record(kindGone))
	e.place.block, e.state = 0, 0
	s.table.tidy(id)
}

// note appends a record, under mu, when what was written has been synced.
func (s *Slab) note(r record) {
	s.pending.records = append(s.pending.records, r)
	if len(s.pending.records) == 1 || s.pending.bytes >= s.flushBytes() {
		s.kick()
	}
}
