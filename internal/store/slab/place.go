package slab

import (
	"context"
	"math"
	"runtime"
	"slices"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Place pins chunks where they are, durably, and says where that is: for an
// image that is to be mounted natively over the slab. When it returns
//
//   - every chunk is here, and since the last unclean stop its bytes matched its
//     digest, or were written; those of which that is not known are read now, in
//     parallel, and it is remembered;
//   - the disk has them;
//   - until Unpin the places are nobody else's, whatever happens to this process,
//     the machine or the index.
//
// What owner has pinned before stays pinned: an older mount may read there. If
// chunks are missing the error is fault.NotFound and a *MissingError.
func (s *Slab) Place(owner string, chunks []store.Chunk) (Placement, error) {
	if _, err := pinFile(owner); err != nil {
		return Placement{}, err
	}
	held, blocks, err := s.hold(chunks)
	defer func() { s.release(held.ids) }() // fixed by then, or not wanted
	if err != nil {
		return Placement{}, err
	}
	if err := s.verifySound(held.unsound); err != nil {
		return Placement{}, err
	}
	if err := s.Flush(); err != nil {
		return Placement{}, err
	}
	if err := s.fix(owner, held.ids); err != nil {
		return Placement{}, err
	}
	return Placement{File: s.Path(), Blocks: blocks}, nil
}

// held are entries with a volatile pin.
type held struct {
	ids     []uint32
	unsound []seat // those that have to be read
}

// hold keeps chunks from eviction, each once, and finds their places.
func (s *Slab) hold(chunks []store.Chunk) (h held, blocks []uint32, err error) {
	var seen idSet
	var missing MissingError
	absent := map[store.Digest]bool{}
	blocks = make([]uint32, 0, len(chunks))
	for part := range slices.Chunk(chunks, pageEntries) {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return h, nil, errClosed()
		}
		for _, c := range part {
			if c.Digest.IsZero() {
				blocks = append(blocks, Hole)
				continue
			}
			id, e := s.table.find(c.Digest)
			if e == nil || !e.here() || e.place.size != c.Size || e.volatile == math.MaxUint16 {
				if !absent[c.Digest] {
					absent[c.Digest] = true
					missing.Missing++
					missing.Bytes += int64(c.Size)
				}
				continue
			}
			blocks = append(blocks, e.place.block)
			if seen.add(id) {
				e.volatile++
				h.ids = append(h.ids, id)
				if e.state&stateSound == 0 {
					h.unsound = append(h.unsound, seat{id, e.place})
				}
			}
		}
		s.mu.Unlock()
	}
	if missing.Missing > 0 {
		missing.Total = len(h.ids) + missing.Missing
		return h, nil, missingError(missing)
	}
	return h, blocks, nil
}

func missingError(m MissingError) error {
	return &fault.Error{Class: fault.NotFound, Op: "place", Object: "chunks", Err: &m}
}

// verifySound reads chunks that are held.
func (s *Slab) verifySound(unsound []seat) error {
	missing := MissingError{Total: len(unsound)}
	err := s.inspectAll(context.Background(), unsound, func(at seat, c store.Chunk, damage error) {
		if damage != nil {
			s.damaged(c.Digest, at.place, damage)
			missing.Missing++
			missing.Bytes += int64(c.Size)
		}
	})
	if err == nil && missing.Missing > 0 {
		err = missingError(missing)
	}
	return err
}

// verifiers is how many chunks are read at once to verify them: one for each
// processor to compute digests, and some for the disk to be busy.
func verifiers() int { return runtime.GOMAXPROCS(0) + 2 }

// fix makes the pins of held entries durable.
func (s *Slab) fix(name string, ids []uint32) error {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	s.mu.Lock()
	if len(s.owners) == math.MaxUint16 && s.owners[name] == nil {
		s.mu.Unlock()
		return fault.New(fault.Exhausted, "%d images have chunks pinned already", math.MaxUint16)
	}
	o := s.owner(name)
	s.mu.Unlock()
	defer s.tidyOwner(name)

	var have idSet
	for _, id := range o.fixed {
		have.add(id)
	}
	var missing MissingError
	var fresh []uint32
	for part := range slices.Chunk(ids, pageEntries) {
		s.mu.Lock()
		for _, id := range part {
			switch e := s.table.at(id); {
			case s.closed || !e.here() || e.state&(stateSound|stateSynced) != stateSound|stateSynced:
				missing.Missing++ // meanwhile
				missing.Bytes += int64(e.place.size)
			case have.add(id):
				e.fixed++ // from here damage does not take it away
				fresh = append(fresh, id)
			}
		}
		s.mu.Unlock()
	}
	if missing.Missing > 0 {
		s.unfix(fresh)
		missing.Total = len(ids)
		return missingError(missing)
	}
	s.mu.Lock()
	o.fixed = append(o.fixed, fresh...)
	before := o.durable
	o.durable = true
	s.mu.Unlock()
	err := s.writePins(name, s.pinsOf(name))
	if err == nil || before || s.removePins(name) != nil {
		return err // if there may be a file, what it may name stays
	}
	s.mu.Lock()
	o.fixed, o.durable = nil, false
	s.mu.Unlock()
	s.unfix(fresh)
	return err
}

// pinsOf is what an owner's pin file is to say. Called with pinning held.
func (s *Slab) pinsOf(name string) []pinned {
	s.mu.RLock()
	ids := s.owners[name].fixed
	s.mu.RUnlock()
	var pins []pinned
	for part := range slices.Chunk(ids, pageEntries) {
		s.mu.RLock()
		for _, id := range part {
			e := s.table.at(id)
			pins = append(pins, pinned{e.digest, e.place})
		}
		s.mu.RUnlock()
	}
	return pins
}

// unfix undoes one durable pin of each entry.
func (s *Slab) unfix(ids []uint32) {
	now := s.clock.now()
	for part := range slices.Chunk(ids, pageEntries) {
		s.mu.Lock()
		for _, id := range part {
			e := s.table.at(id)
			e.fixed--
			e.used = e.used&usedAgain | now // what natively mounted images read, nobody counts
			if e.fixed == 0 && e.state&(stateDamaged|stateRewriting) == stateDamaged {
				s.forget(id, e)
				continue
			}
			s.table.tidy(id)
		}
		s.mu.Unlock()
	}
}

// tidyOwner forgets an owner who has nothing pinned.
func (s *Slab) tidyOwner(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.owners[name]; o != nil && !o.durable && len(o.volatile) == 0 {
		delete(s.owners, name)
	}
}
