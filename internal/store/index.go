package store

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// pack is one pack that the store can read.
type pack struct {
	digest  Digest
	size    int64
	index   packIndex
	how     packSeal
	touched atomic.Uint64 // when it was last written or relied on, on the clock of holds
}

// ref is the position of a copy of a chunk: the slot of its pack, the entry in it.
type ref struct{ slot, entry uint32 }

// index finds chunks in packs. A chunk can be in several (two imports at once
// may both write it); each copy is kept in mind, so that one remains when the
// other's pack is deleted or damaged.
//
// It is keyed by the first eight bytes of digests, and compares the rest in the
// packs' own indexes: half the memory of whole digests, and nothing for the
// garbage collector to follow. About 70 bytes a chunk in all.
type index struct {
	mu         sync.RWMutex
	packs      []*pack           // by slot; nil: free
	free       []uint32          // slots
	slots      map[Digest]uint32 // by name of pack
	first      map[uint64]ref
	more       map[uint64][]ref    // further copies, and other chunks with the same eight bytes
	damaged    map[ref]struct{}    // copies that turned out wrong
	unreadable map[Digest]struct{} // packs in the origin whose index is damaged
	entries    int
}

func newIndex() *index {
	return &index{
		slots: map[Digest]uint32{}, first: map[uint64]ref{}, more: map[uint64][]ref{},
		damaged: map[ref]struct{}{}, unreadable: map[Digest]struct{}{},
	}
}

func shortKey(d Digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }

// add makes the chunks of a pack known. If the pack is known it is replaced: it
// has the same chunks, and they have just been written.
func (x *index) add(p *pack) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(p.digest)
	slot := uint32(len(x.packs))
	if n := len(x.free); n > 0 {
		slot, x.free = x.free[n-1], x.free[:n-1]
		x.packs[slot] = p
	} else {
		x.packs = append(x.packs, p)
	}
	x.slots[p.digest] = slot
	for i := range p.index.len() {
		key, r := shortKey(p.index.digest(i)), ref{slot, uint32(i)}
		if _, ok := x.first[key]; ok {
			x.more[key] = append(x.more[key], r)
		} else {
			x.first[key] = r
		}
	}
	x.entries += p.index.len()
}

// grow prepares for n chunks that are about to be added to an empty index.
func (x *index) grow(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.first) == 0 {
		x.first = make(map[uint64]ref, n)
	}
}

// removeLocked forgets a pack. The caller holds mu.
func (x *index) removeLocked(d Digest) {
	delete(x.unreadable, d)
	slot, ok := x.slots[d]
	if !ok {
		return
	}
	p := x.packs[slot]
	for i := range p.index.len() {
		key, r := shortKey(p.index.digest(i)), ref{slot, uint32(i)}
		delete(x.damaged, r)
		more := x.more[key]
		if x.first[key] == r {
			if len(more) == 0 {
				delete(x.first, key)
				continue
			}
			x.first[key], more = more[0], more[1:]
		} else {
			for j, m := range more {
				if m == r {
					more = append(more[:j:j], more[j+1:]...)
					break
				}
			}
		}
		if len(more) == 0 {
			delete(x.more, key)
		} else {
			x.more[key] = more
		}
	}
	delete(x.slots, d)
	x.packs[slot] = nil
	x.free = append(x.free, slot)
	x.entries -= p.index.len()
}

// copies calls fn for each copy of d until fn is true, and reports whether it was.
// Precondition: x.mu is held.
func (x *index) copies(d Digest, fn func(r ref, p *pack) bool) bool {
	key := shortKey(d)
	r, ok := x.first[key]
	if !ok {
		return false
	}
	if p := x.packs[r.slot]; p.index.digest(int(r.entry)) == d && fn(r, p) {
		return true
	}
	for _, r := range x.more[key] {
		if p := x.packs[r.slot]; p.index.digest(int(r.entry)) == d && fn(r, p) {
			return true
		}
	}
	return false
}

// rely finds a good copy of d, in a pack that will do, to be relied on instead of
// storing it again, and marks the pack as touched at that moment: Collect, which looks at the mark
// under the exclusive lock, spares it. size 0 means any.
func (x *index) rely(d Digest, size uint32, now func() uint64, will func(*pack) bool) (in Digest, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ok = x.copies(d, func(r ref, p *pack) bool {
		if x.isDamaged(r) || size != 0 && p.index.at(int(r.entry)).size != size || !will(p) {
			return false
		}
		p.touched.Store(now())
		in = p.digest
		return true
	})
	return in, ok
}

// knows reports whether there is a copy of d, good or damaged.
func (x *index) knows(d Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.copies(d, func(ref, *pack) bool { return true })
}

// has reports whether there is a good copy of d.
func (x *index) has(d Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.copies(d, func(r ref, _ *pack) bool { return !x.isDamaged(r) })
}

func (x *index) isDamaged(r ref) bool {
	if len(x.damaged) == 0 {
		return false
	}
	_, bad := x.damaged[r]
	return bad
}

// copyOf is a place to read a chunk from: in a pack of a store.
type copyOf struct {
	in   *Store
	pack Digest
	how  packSeal
	entry
}

// find lists the copies of d in the index of a store, those known to be damaged
// last: the damage may have been in the reading.
func (x *index) find(in *Store, d Digest) []copyOf {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var good, bad []copyOf
	x.copies(d, func(r ref, p *pack) bool {
		c := copyOf{in, p.digest, p.how, p.index.at(int(r.entry))}
		if x.isDamaged(r) {
			bad = append(bad, c)
		} else {
			good = append(good, c)
		}
		return false
	})
	return append(good, bad...)
}

// markDamaged remembers that the copy of d in a pack is wrong, and reports
// whether that is news.
func (x *index) markDamaged(d, in Digest) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	news := false
	x.copies(d, func(r ref, p *pack) bool {
		if p.digest == in && !x.isDamaged(r) {
			x.damaged[r] = struct{}{}
			news = true
		}
		return false
	})
	return news
}

// names lists the packs that are known, with their lengths.
func (x *index) names() map[Digest]int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	names := make(map[Digest]int64, len(x.slots))
	for d, slot := range x.slots {
		names[d] = x.packs[slot].size
	}
	return names
}

// snapshot is what the local copy of indexes has to hold.
func (x *index) snapshot() map[Digest]*loggedPack {
	x.mu.RLock()
	defer x.mu.RUnlock()
	l := make(map[Digest]*loggedPack, len(x.slots))
	for d, slot := range x.slots {
		p := x.packs[slot]
		l[d] = &loggedPack{size: p.size, index: p.index, how: p.how}
	}
	for r := range x.damaged {
		if p := x.packs[r.slot]; p != nil {
			l[p.digest].damaged = append(l[p.digest].damaged, p.index.digest(int(r.entry)))
		}
	}
	return l
}

// remove forgets a pack.
func (x *index) remove(d Digest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(d)
}

// removeIfSize forgets a pack that is gone, unless it has another length now.
func (x *index) removeIfSize(d Digest, size int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slot, ok := x.slots[d]; ok && x.packs[slot].size == size {
		_, unreadable := x.unreadable[d]
		x.removeLocked(d)
		if unreadable {
			x.unreadable[d] = struct{}{}
		}
	}
}

// unmarkDamaged is called when a copy reads well: the damage was in the reading.
func (x *index) unmarkDamaged(d, in Digest) {
	x.mu.RLock()
	none := len(x.damaged) == 0
	x.mu.RUnlock()
	if none {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.copies(d, func(r ref, p *pack) bool {
		if p.digest == in {
			delete(x.damaged, r)
		}
		return false
	})
}

// markUnreadable remembers a pack whose index cannot be read, and reports whether
// that is news.
func (x *index) markUnreadable(d Digest) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, known := x.unreadable[d]
	x.unreadable[d] = struct{}{}
	return !known
}

// unreadables are the packs whose index could not be read.
func (x *index) unreadables() []Digest {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Keys(x.unreadable))
}

// isBad reports whether something is wrong with a pack, so that writing it again
// has to replace it.
func (x *index) isBad(d Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if _, ok := x.unreadable[d]; ok {
		return true
	}
	slot, ok := x.slots[d]
	if ok {
		for r := range x.damaged {
			if r.slot == slot {
				return true
			}
		}
	}
	return false
}

// known reports whether a pack is in the index, and marks it as touched.
func (x *index) known(d Digest, now func() uint64) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	slot, ok := x.slots[d]
	if ok {
		x.packs[slot].touched.Store(now())
	}
	return ok
}

// removeIf forgets a pack unless it was touched at or after since; it reports
// whether the pack may be deleted, which holds for an unknown one, too. With dry it only reports.
func (x *index) removeIf(d Digest, since uint64, dry bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slot, ok := x.slots[d]; ok && x.packs[slot].touched.Load() >= since {
		return false
	}
	if !dry {
		x.removeLocked(d)
	}
	return true
}

// size gives a pack's length, and whether it is known.
func (x *index) size(d Digest) (int64, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	slot, ok := x.slots[d]
	if !ok {
		return 0, false
	}
	return x.packs[slot].size, true
}

func (x *index) counts() (packs, chunks, damaged, unreadable int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.slots), x.entries, len(x.damaged), len(x.unreadable)
}
