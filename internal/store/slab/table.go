package slab

import (
	"encoding/binary"

	"brisk.dev/brisk/internal/store"
)

// entry is what is known of one chunk: that it is here, or that somebody has it
// pinned, or both. 52 bytes; with the table's share, about 80 for a chunk.
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
//
// Two digests whose first eight bytes are the same are not kept both. Chance
// does not make such, and who makes them on purpose makes both, and has only
// their own chunks read from the origin.
type table struct {
	ids   map[uint64]uint32
	pages []*[pageEntries]entry
	free  []uint32
	next  uint32
}

const pageEntries = 1024

func keyOf(d *store.Digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }

func newTable() table { return table{ids: map[uint64]uint32{}} }

func (t *table) at(id uint32) *entry { return &t.pages[id/pageEntries][id%pageEntries] }

// find gives the entry of a digest.
func (t *table) find(d store.Digest) (id uint32, e *entry) {
	id, ok := t.ids[keyOf(&d)]
	if !ok {
		return 0, nil
	}
	if e = t.at(id); e.digest != d {
		return 0, nil
	}
	return id, e
}

// add makes an entry; nil if another digest is in its way. There must be none of it.
func (t *table) add(d store.Digest) (id uint32, e *entry) {
	if _, taken := t.ids[keyOf(&d)]; taken {
		return 0, nil
	}
	if n := len(t.free); n > 0 {
		id, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if id = t.next; id%pageEntries == 0 {
			t.pages = append(t.pages, new([pageEntries]entry))
		}
		t.next++
	}
	t.ids[keyOf(&d)] = id
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
	delete(t.ids, keyOf(&e.digest))
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
