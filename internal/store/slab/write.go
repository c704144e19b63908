package slab

import (
	"errors"
	"os"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Write implements store.Cache. A chunk that is here already, or for which
// nothing can be evicted, is left alone, and that is no error.
func (s *Slab) Write(c store.Chunk, data []byte) error {
	if c.Size == 0 || c.Size > store.ChunkSize || len(data) != int(c.Size) || c.Digest.IsZero() {
		return fault.New(fault.Invalid, "write chunk %s of %d bytes", c, len(data))
	}
	s.mu.RLock()
	_, e := s.table.find(c.Digest)
	there, closed := e != nil && e.here(), s.closed
	s.mu.RUnlock()
	if closed {
		return errClosed()
	}
	if there {
		return nil
	}
	if s.unmeasured.Add(int64(c.Size)) >= measureBytes {
		s.measure()
	}
	need := int64(blocks(c.Size))
	s.makeRoom(need)
	err := s.put(c, data)
	if fault.Is(err, fault.DiskFull) && s.evict(max(need, evictBlocks), nil) > 0 {
		err = s.put(c, data)
	}
	return store.DiskError(err, "write to slab", s.opts.Dir)
}

// Repair writes the right bytes of a chunk that was found damaged, and returns
// when the disk has them. If natively mounted images read the chunk, they are written
// to the place where those read. Data that does not match the digest is
// fault.Corrupt. A kernel that has read the wrong bytes keeps them in the page
// cache of the mount, however: drop that too (lazyfs.FS.Reread).
func (s *Slab) Repair(c store.Chunk, data []byte) error {
	if store.Sum(data) != c.Digest {
		return fault.New(fault.Corrupt, "repair chunk %s: %v", c, errMismatch)
	}
	if err := s.Write(c, data); err != nil {
		return err
	}
	return s.Flush()
}

// put gives the chunk a place and writes it there, if there is room.
func (s *Slab) put(c store.Chunk, data []byte) error {
	s.growing.RLock()
	defer s.growing.RUnlock()
	p := place{size: c.Size}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed()
	}
	if _, e := s.table.find(c.Digest); e != nil && e.place.block != 0 {
		if e.state&(stateDamaged|stateRewriting) != stateDamaged || e.place.size != c.Size {
			s.mu.Unlock()
			return nil
		}
		e.state |= stateRewriting
		p = e.place
		s.mu.Unlock()
		return s.rewrite(c, p, data)
	}
	need := blocks(c.Size)
	ok := s.extents.used+int64(need) <= s.room
	if ok {
		p.block, ok = s.extents.take(need)
	}
	s.mu.Unlock()
	if !ok {
		s.counters.refused.Add(1)
		return nil
	}
	err := s.writeAt(p, data)

	s.mu.Lock()
	defer s.mu.Unlock()
	id, e := s.table.findOrAdd(c.Digest)
	if err != nil || e.place.block != 0 || s.closed { // perhaps somebody wrote the same meanwhile
		s.table.tidy(id)
		s.retired = append(s.retired, p.extent())
		if errors.Is(err, os.ErrClosed) {
			return errClosed()
		}
		return err
	}
	s.counters.writes.Add(1)
	e.place, e.used = p, s.clock.tick()
	s.written(e)
	return nil
}

// rewrite puts the right bytes where a natively mounted image reads them.
func (s *Slab) rewrite(c store.Chunk, p place, data []byte) error {
	err := errMismatch
	if store.Sum(data) == c.Digest {
		err = s.writeAt(p, data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, e := s.table.find(c.Digest) // it did not go anywhere: it was being rewritten
	e.state &^= stateRewriting
	if err != nil {
		if e.fixed == 0 {
			s.forget(id, e)
		}
		return err
	}
	e.state &^= stateDamaged
	s.log.Info("a damaged chunk was written anew to its place", "chunk", c.Digest, "block", p.block)
	s.written(e)
	return nil
}

// written notes, under mu, that the place of e has the right bytes, which are to be synced.
func (s *Slab) written(e *entry) {
	e.state = stateChecked | stateSound
	s.pending.bytes += int64(e.place.size)
	s.note(e.record(kindHere))
}

var zeros [store.BlockSize]byte

// writeAt fills a place.
func (s *Slab) writeAt(p place, data []byte) error {
	_, err := s.data.WriteAt(data, p.offset())
	if pad := int(p.extent().count)*store.BlockSize - len(data); err == nil && pad > 0 {
		// The rest of the last block can be seen through a mapping.
		_, err = s.data.WriteAt(zeros[:pad], p.offset()+int64(len(data)))
	}
	return err
}
