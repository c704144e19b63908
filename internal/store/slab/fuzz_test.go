package slab

import (
	"testing"

	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/store"
)

func FuzzIndex(f *testing.F) {
	var b []byte
	for i, size := range []uint32{1, 4096, 131072, 70000} {
		b = record{digest: store.Digest{byte(i + 1)}, block: uint32(1 + 40*i), size: size, kind: kindPut}.append(b)
	}
	b = record{digest: store.Digest{2}, block: 41, size: 4096, kind: kindDrop}.append(b)
	f.Add(b, uint32(1000))
	f.Add(b, uint32(100))
	overlap := record{digest: store.Digest{9}, block: 82, size: 131072, kind: kindPut}.append(b)
	f.Add(overlap, uint32(1000))
	f.Add(b[:len(b)-1], uint32(1000))
	f.Fuzz(func(t *testing.T, b []byte, dataBlocks uint32) {
		places, _ := decodeIndex(b, dataBlocks%maxBlocks)
		checkPlaces(t, places, dataBlocks%maxBlocks)
		id := identity{1}
		again, clean := decodeIndex(encodeIndex(id, places)[headerSize:], dataBlocks%maxBlocks)
		if !clean || len(again) != len(places) {
			t.Fatalf("%d places written, %d read, clean %v", len(places), len(again), clean)
		}
	})
}

// checkPlaces fails unless all places are inside and apart.
func checkPlaces(t interface{ Fatalf(string, ...any) }, places map[store.Digest]place, dataBlocks uint32) {
	owner := map[uint32]store.Digest{}
	for d, p := range places {
		if p.block == 0 || p.end() > dataBlocks || p.size == 0 || p.size > store.ChunkSize {
			t.Fatalf("place %+v of %d blocks", p, dataBlocks)
		}
		for b := p.block; b < p.end(); b++ {
			if other, ok := owner[b]; ok {
				t.Fatalf("block %d belongs to %v and %v", b, d, other)
			}
			owner[b] = d
		}
	}
}

// Taken extents never overlap; used counts them; what is given back can be taken again.
func TestExtents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newExtents(nil)
		var taken []extent
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(taken) > 0 && rapid.IntRange(0, 2).Draw(t, "give") == 0 {
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				e.give(taken[i].block, taken[i].count)
				taken = append(taken[:i], taken[i+1:]...)
			} else {
				n := uint32(rapid.IntRange(1, 32).Draw(t, "count"))
				block, ok := e.take(n)
				if !ok {
					t.Fatalf("no room")
				}
				taken = append(taken, extent{block, n})
			}
			places := map[store.Digest]place{}
			var used int64
			for i, x := range taken {
				places[store.Digest{byte(i), byte(i >> 8), 1}] = place{block: x.block, size: x.count * store.BlockSize}
				used += int64(x.count)
			}
			checkPlaces(t, places, e.end)
			if e.used != used {
				t.Fatalf("used %d, want %d", e.used, used)
			}
			var free int64
			for i, f := range e.free {
				free += int64(f.count)
				if f.count == 0 || i > 0 && e.free[i-1].block+e.free[i-1].count >= f.block {
					t.Fatalf("free runs %v", e.free)
				}
			}
			if free+used+1 != int64(e.end) {
				t.Fatalf("%d free, %d used, end %d", free, used, e.end)
			}
		}
	})
}

func TestExtentsEnd(t *testing.T) {
	e := extents{end: maxBlocks - 3}
	if _, ok := e.take(4); ok {
		t.Fatal("went past the end")
	}
	if b, ok := e.take(3); !ok || b != maxBlocks-3 {
		t.Fatal(b, ok)
	}
}
