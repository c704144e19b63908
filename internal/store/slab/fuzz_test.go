package slab

import (
	"bytes"
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/store"
)

func here(n byte, block, size uint32) record {
	return record{digest: store.Digest{n}, place: place{block, size}, kind: kindHere, used: uint32(n), flags: flagSound}
}

func FuzzIndex(f *testing.F) {
	var b []byte
	for i, size := range []uint32{1, 4096, 131072, 70000} {
		b = here(byte(i+1), uint32(1+40*i), size).append(b)
	}
	b = record{digest: store.Digest{2}, place: place{41, 4096}, kind: kindGone}.append(b)
	b = scrubState{block: 40, began: 1_700_000_000, ended: 1_600_000_000}.record().append(b)
	pins := encodePins(identity{1}, []pinned{{store.Digest{3}, place{81, 131072}}, {store.Digest{7}, place{200, 5000}}})
	f.Add(b, pins, uint32(1000), true)
	f.Add(b, pins[:40], uint32(100), false)
	f.Add(here(9, 82, 131072).append(b), []byte(nil), uint32(1000), true)
	f.Add(b[:len(b)-1], encodePins(identity{1}, nil), uint32(1000), true)
	f.Fuzz(func(t *testing.T, b, pinFile []byte, dataBlocks uint32, clean bool) {
		dataBlocks %= maxBlocks
		owned := map[string][]pinned{}
		if _, pins, ok := decodePins(pinFile); ok && !contradict(slices.Clone(pins)) {
			owned["a"] = pins
		}
		c := decodeContents(b, owned, dataBlocks, clean)
		checkContents(t, &c, owned, dataBlocks)
		again := decodeContents(encode(&c.table), owned, dataBlocks, clean)
		if again.untidy && !c.untidy || again.table.ids.Len() != c.table.ids.Len() {
			t.Fatalf("%d chunks written, %d read, untidy %v, before %v", c.table.ids.Len(), again.table.ids.Len(), again.untidy, c.untidy)
		}
	})
}

// encode is the records of an index file.
func encode(t *table) []byte {
	var b []byte
	for _, e := range t.all() {
		b = e.record(kindHere).append(b)
	}
	return b
}

// checkContents fails unless all places are apart and inside, but for those of
// pins, which are where these say, and no place that is taken is missing.
func checkContents(t interface{ Fatalf(string, ...any) }, c *contents, pins map[string][]pinned, dataBlocks uint32) {
	for _, p := range pins["a"] {
		if _, e := c.table.find(p.digest); e == nil || e.place != p.place || e.fixed == 0 {
			t.Fatalf("pinned %+v became %+v", p, e)
		}
	}
	owner := map[uint32]store.Digest{}
	for _, e := range c.table.all() {
		if !e.place.possible() || e.fixed == 0 && e.place.end() > dataBlocks || e.state&stateChecked != 0 {
			t.Fatalf("entry %+v of %d blocks", e, dataBlocks)
		}
		for b := e.place.block; b < e.place.end(); b++ {
			if other, ok := owner[b]; ok {
				t.Fatalf("block %d belongs to %v and %v", b, e.digest, other)
			}
			owner[b] = e.digest
		}
	}
	for i, x := range c.taken {
		if i > 0 && x.block < c.taken[i-1].end() {
			t.Fatalf("taken %v", c.taken)
		}
		for b := x.block; b < x.end(); b++ {
			delete(owner, b)
		}
	}
	if len(owner) > 0 {
		t.Fatalf("not taken: %v", owner)
	}
}

func FuzzPins(f *testing.F) {
	f.Add(encodePins(identity{1}, nil))
	f.Add(encodePins(identity{2}, []pinned{{store.Digest{3}, place{81, 131072}}, {store.Digest{7}, place{200, 1}}}))
	f.Add([]byte("BRSKSLPN"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, pins, ok := decodePins(b)
		if ok && !bytes.Equal(encodePins(id, pins), b) {
			t.Fatalf("%d pins are not what was read", len(pins))
		}
	})
}

// Taken extents never overlap; used counts them; what is given back can be taken again.
func TestExtents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newExtents(nil)
		var taken []extent
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(taken) > 0 && rapid.IntRange(0, 2).Draw(t, "give") == 0 {
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				e.give(taken[i])
				taken = append(taken[:i], taken[i+1:]...)
			} else {
				n := uint32(rapid.IntRange(1, 32).Draw(t, "count"))
				block, ok := e.take(n)
				if !ok {
					t.Fatalf("no room")
				}
				taken = append(taken, extent{block, n})
			}
			all := slices.Clone(taken)
			var used, free int64
			for _, x := range taken {
				used += int64(x.count)
			}
			for block, count := range e.byBlock {
				if count == 0 || e.byEnd[block+count] != block {
					t.Fatalf("free runs %v, by end %v", e.byBlock, e.byEnd)
				}
				free += int64(count)
				all = append(all, extent{block, count})
			}
			if e.used != used || free+used+1 != int64(e.end) || len(e.byBlock) != len(e.byEnd) {
				t.Fatalf("%d free, %d used, really %d, end %d", free, e.used, used, e.end)
			}
			slices.SortFunc(all, func(x, y extent) int { return cmp.Compare(x.block, y.block) })
			at, wasFree := uint32(1), false
			for _, x := range all {
				_, isFree := e.byBlock[x.block]
				if x.block != at || isFree && wasFree {
					t.Fatalf("%v does not follow %d", x, at)
				}
				at, wasFree = x.end(), isFree
			}
			if at != e.end || wasFree {
				t.Fatalf("ends at %d, not %d", at, e.end)
			}
		}
	})
}

func TestExtentsEnd(t *testing.T) {
	e := newExtents(nil)
	e.end = maxBlocks - 3
	if _, ok := e.take(4); ok {
		t.Fatal("went past the end")
	}
	if b, ok := e.take(3); !ok || b != maxBlocks-3 {
		t.Fatal(b, ok)
	}
}

// Taking and giving cost the same however many free runs are too small.
func BenchmarkExtents(b *testing.B) {
	var taken []extent
	for i := range uint32(200_000) {
		taken = append(taken, extent{2 + 3*i, 1})
	}
	e := newExtents(taken)
	for b.Loop() {
		block, _ := e.take(32)
		e.give(extent{block, 32})
	}
}
