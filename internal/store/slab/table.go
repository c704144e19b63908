package slab

import (
	"iter"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/digestmap"
)

// entry is what is known of one chunk: that it is here, or that somebody has it
// pinned, or both.
type entry struct {
	digest   store.Digest
	place    place // block 0: it is not here
	state    state
	volatile uint16 // how many mounted images want it kept here
	fixed    uint16 // how many want it kept here, and at this very place
	used     uint32 // tick of the last use, and usedAgain; changed atomically, without mu
}

type state uint16

const (
	// stateChecked: since opening, the bytes matched the digest, or were written.
	stateChecked state = 1 << iota
	// stateSound: since the last unclean stop, the bytes matched the digest, or
	// were written. It outlives a clean stop.
	stateSound
	// stateSynced: the disk has the bytes, and the index a record of them.
	stateSynced
	// stateDamaged: the bytes do not match the digest, but the chunk is fixed. It
	// counts as absent until somebody writes the right bytes to its place.
	stateDamaged
	// stateRewriting: the right bytes are on the way to a damaged chunk's place,
	// which therefore stays as it is.
	stateRewriting
)

// here reports whether the chunk can be read.
func (e *entry) here() bool { return e.place.block != 0 && e.state&stateDamaged == 0 }

// evictable reports whether nobody minds if the chunk goes. What is not synced
// stays: a sync in progress must find it as it was.
func (e *entry) evictable() bool {
	return e.place.block != 0 && !e.pinned() && e.state&(stateSynced|stateRewriting) == stateSynced
}

func (e *entry) pinned() bool { return e.volatile > 0 || e.fixed > 0 }

// table has the entries, each with a small number for as long as it exists:
// what refers to a chunk does so in 4 bytes. Entries do not move.
// An entry takes 52 bytes, and 10 to 15 to find it by.
type table struct {
	ids   digestmap.Map // of the entries that say something
	pages []*[pageEntries]entry
	free  []uint32
	next  uint32
}

const pageEntries = 1260 // 64 KiB

func (t *table) at(id uint32) *entry { return &t.pages[id/pageEntries][id%pageEntries] }

// find gives the entry of a digest.
func (t *table) find(d store.Digest) (id uint32, e *entry) {
	for id := range t.ids.Candidates(d) {
		if e := t.at(id); e.digest == d {
			return id, e
		}
	}
	return 0, nil
}

// all gives the entries that say something, in the order of their numbers. They may be
// tidied meanwhile, but none may be added.
func (t *table) all() iter.Seq2[uint32, *entry] {
	return func(yield func(uint32, *entry) bool) {
		for n, page := range t.pages {
			for i := range page {
				if e := &page[i]; !e.digest.IsZero() && !yield(uint32(n*pageEntries+i), e) {
					return
				}
			}
		}
	}
}

// add makes an entry. There must be none of the digest.
func (t *table) add(d store.Digest) (id uint32, e *entry) {
	if n := len(t.free); n > 0 {
		id, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if id = t.next; id%pageEntries == 0 {
			t.pages = append(t.pages, new([pageEntries]entry))
		}
		t.next++
	}
	t.ids.Add(d, id)
	e = t.at(id)
	*e = entry{digest: d}
	return id, e
}

// findOrAdd is find, and add if there is none.
func (t *table) findOrAdd(d store.Digest) (id uint32, e *entry) {
	if id, e = t.find(d); e != nil {
		return id, e
	}
	return t.add(d)
}

// tidy removes an entry that says nothing any more.
func (t *table) tidy(id uint32) {
	e := t.at(id)
	if e.place.block != 0 || e.pinned() || e.digest.IsZero() {
		return
	}
	t.ids.Remove(e.digest, id)
	*e = entry{}
	t.free = append(t.free, id)
}

// idSet is a set of entries' numbers.
type idSet []uint64

// add reports whether id was not in the set.
func (s *idSet) add(id uint32) bool {
	for int(id/64) >= len(*s) {
		*s = append(*s, 0)
	}
	word, bit := &(*s)[id/64], uint64(1)<<(id%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
