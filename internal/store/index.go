package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"brisk.dev/brisk/internal/store/digestmap"
)

// pack is one pack that the store can read.
type pack struct {
	digest  Digest
	size    int64
	index   packIndex // nil: it lies in the local copy,
	file    io.ReaderAt
	at      int64 // at this byte
	entries int   // in it
	how     packSeal
	base    uint32        // number of its first entry in the index
	touched atomic.Uint64 // when it was last written or relied on, on the clock of holds
}

func newPack(d Digest, size int64, x packIndex, how packSeal) *pack {
	return &pack{digest: d, size: size, index: x, entries: x.len(), how: how}
}

// entry reads an entry; false if the local copy cannot be read.
func (p *pack) entry(i int) (entry, bool) {
	if p.index != nil {
		return p.index.at(i), true
	}
	var b [packEntry]byte
	if _, err := p.file.ReadAt(b[:], p.at+int64(i)*packEntry); err != nil {
		return entry{}, false
	}
	return packIndex(b[:]).at(0), true
}

// all reads the index of the pack; false if the local copy cannot be read.
func (p *pack) all() (packIndex, bool) {
	if p.index != nil {
		return p.index, true
	}
	x := make(packIndex, p.entries*packEntry)
	_, err := p.file.ReadAt(x, p.at)
	return x, err == nil
}

// index finds chunks in packs. A chunk can be in several (two imports at once
// may both write it); each copy is kept in mind, so that one remains when the
// other's pack is deleted or damaged.
//
// All entries of all packs are numbered, and found by their digests through these
// numbers: that takes 10 to 15 bytes a chunk. The packs' own indexes, another 48,
// are read where the local copy of them lies, an entry at a time. Its bytes were
// verified when they were read or written last: what rots later makes a chunk seem not
// to be there, or to be damaged where it is, for whatever is read is verified.
type index struct {
	mu         sync.RWMutex
	packs      map[Digest]*pack
	numbered   []*pack // by base
	numbers    digestmap.Map
	next       uint32 // number
	entries    int
	damaged    map[uint32]struct{} // copies that turned out wrong
	unreadable map[Digest]struct{} // packs in the origin whose index is damaged
}

func newIndex() *index {
	return &index{packs: map[Digest]*pack{}, damaged: map[uint32]struct{}{}, unreadable: map[Digest]struct{}{}}
}

func shortKey(d Digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }

// add makes the chunks of a pack, whose index is in memory, known. If the pack is known it is replaced: it
// has the same chunks, and they have just been written.
func (x *index) add(p *pack) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(p.digest)
	if uint32(p.entries) > digestmap.Max-x.next {
		x.renumberLocked()
	}
	x.packs[p.digest] = p
	x.numberLocked(p, p.index)
	x.entries += p.entries
}

// settle says where the index of a pack lies in the local copy: it need not be in memory any more.
func (x *index) settle(d Digest, file io.ReaderAt, at int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.packs[d]; p != nil {
		p.index, p.file, p.at = nil, file, at
	}
}

// numberLocked gives the entries of a pack the next numbers. The caller holds mu.
func (x *index) numberLocked(p *pack, entries packIndex) {
	p.base = x.next
	x.next += uint32(p.entries)
	x.numbered = append(x.numbered, p)
	for i := range entries.len() {
		x.numbers.Add(entries.digest(i), p.base+uint32(i))
	}
}

// renumberLocked begins the numbers anew. Only many packs that came and went use them up. The
// caller holds mu.
func (x *index) renumberLocked() {
	before, damaged := x.numbered, x.damaged
	x.numbered, x.damaged, x.numbers, x.next = nil, map[uint32]struct{}{}, digestmap.Map{}, 0
	for _, p := range before {
		base := p.base
		entries, ok := p.all()
		if !ok {
			x.forgetLocked(p)
			continue
		}
		x.numberLocked(p, entries)
		for n := range damaged {
			if n >= base && n-base < uint32(p.entries) {
				x.damaged[n-base+p.base] = struct{}{}
			}
		}
	}
}

// grow prepares for n chunks that are about to be added.
func (x *index) grow(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.numbers.Reserve(x.numbers.Len() + n)
}

// entryOf finds the entry that has a number; nil if there is none. The caller holds mu.
func (x *index) entryOf(number uint32) (p *pack, i int) {
	at, found := x.place(number)
	if !found {
		at--
	}
	if at < 0 || number-x.numbered[at].base >= uint32(x.numbered[at].entries) {
		return nil, 0
	}
	p = x.numbered[at]
	return p, int(number - p.base)
}

// place finds the pack whose first entry has a number, or where it would be.
func (x *index) place(number uint32) (at int, found bool) {
	return slices.BinarySearchFunc(x.numbered, number, func(p *pack, number uint32) int { return cmp.Compare(p.base, number) })
}

// removeLocked forgets a pack. The caller holds mu.
func (x *index) removeLocked(d Digest) {
	delete(x.unreadable, d)
	p := x.packs[d]
	if p == nil {
		return
	}
	entries, _ := p.all() // if it cannot be read, its numbers lead nowhere from now on
	for i := range entries.len() {
		x.numbers.Remove(entries.digest(i), p.base+uint32(i))
	}
	at, _ := x.place(p.base)
	x.numbered = slices.Delete(x.numbered, at, at+1)
	x.forgetLocked(p)
}

// forgetLocked forgets a pack that has no numbers any more. The caller holds mu.
func (x *index) forgetLocked(p *pack) {
	for i := range uint32(p.entries) {
		delete(x.damaged, p.base+i)
	}
	delete(x.packs, p.digest)
	x.entries -= p.entries
}

// copies calls fn for each copy of d until fn is true, and reports whether it was.
// Precondition: x.mu is held.
func (x *index) copies(d Digest, fn func(number uint32, p *pack, e entry) bool) bool {
	for number := range x.numbers.Candidates(d) {
		p, i := x.entryOf(number)
		if p == nil {
			continue
		}
		if e, ok := p.entry(i); ok && e.digest == d && fn(number, p, e) {
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
	ok = x.copies(d, func(number uint32, p *pack, e entry) bool {
		if x.isDamaged(number) || size != 0 && e.size != size || !will(p) {
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
	return x.copies(d, func(uint32, *pack, entry) bool { return true })
}

// has reports whether there is a good copy of d.
func (x *index) has(d Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.copies(d, func(number uint32, _ *pack, _ entry) bool { return !x.isDamaged(number) })
}

func (x *index) isDamaged(number uint32) bool {
	if len(x.damaged) == 0 {
		return false
	}
	_, bad := x.damaged[number]
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
	x.copies(d, func(number uint32, p *pack, e entry) bool {
		c := copyOf{in, p.digest, p.how, e}
		if x.isDamaged(number) {
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
	x.copies(d, func(number uint32, p *pack, _ entry) bool {
		if p.digest == in && !x.isDamaged(number) {
			x.damaged[number] = struct{}{}
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
	names := make(map[Digest]int64, len(x.packs))
	for d, p := range x.packs {
		names[d] = p.size
	}
	return names
}

// logged lists the packs with what the local copy has to hold of each; the index is read when it is
// asked for, and nil if the pack has gone meanwhile.
func (x *index) logged() map[Digest]func() *loggedPack {
	x.mu.RLock()
	defer x.mu.RUnlock()
	damaged := map[*pack][]uint32{}
	for number := range x.damaged {
		p, i := x.entryOf(number)
		damaged[p] = append(damaged[p], uint32(i))
	}
	l := make(map[Digest]func() *loggedPack, len(x.packs))
	for d, p := range x.packs {
		l[d] = func() *loggedPack {
			x.mu.RLock()
			defer x.mu.RUnlock()
			entries, ok := p.all()
			if !ok || x.packs[d] != p {
				return nil
			}
			logged := &loggedPack{size: p.size, index: entries, how: p.how}
			for _, i := range damaged[p] {
				logged.damaged = append(logged.damaged, entries.digest(int(i)))
			}
			return logged
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
	if p := x.packs[d]; p != nil && p.size == size {
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
	x.copies(d, func(number uint32, p *pack, _ entry) bool {
		if p.digest == in {
			delete(x.damaged, number)
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
	p := x.packs[d]
	if p == nil {
		return false
	}
	for number := range x.damaged {
		if of, _ := x.entryOf(number); of == p {
			return true
		}
	}
	return false
}

// isOther reports whether a pack that is known has not these entries: somebody has put another
// pack in its place, whose index was then taken for its own.
func (x *index) isOther(d Digest, entries packIndex) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p := x.packs[d]
	if p == nil {
		return false
	}
	have, ok := p.all()
	return !ok || !bytes.Equal(have, entries)
}

// known reports whether a pack is in the index, and marks it as touched.
func (x *index) known(d Digest, now func() uint64) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p := x.packs[d]
	if p != nil {
		p.touched.Store(now())
	}
	return p != nil
}

// removeIf forgets a pack unless it was touched at or after since; it reports
// whether the pack may be deleted, which holds for an unknown one, too. With dry it only reports.
func (x *index) removeIf(d Digest, since uint64, dry bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.packs[d]; p != nil && p.touched.Load() >= since {
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
	p := x.packs[d]
	if p == nil {
		return 0, false
	}
	return p.size, true
}

func (x *index) counts() (packs, chunks, damaged, unreadable int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.packs), x.entries, len(x.damaged), len(x.unreadable)
}
