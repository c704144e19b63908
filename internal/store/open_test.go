package store

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"testing"
)

// namesOnly is an origin that lists packs and has none.
type namesOnly struct {
	Origin
	sizes map[string]int64
}

func (n namesOnly) List(_ context.Context, _ string, fn func(Object) error) error {
	for key, size := range n.sizes {
		if err := fn(Object{Key: key, Size: size}); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkOpen opens a store of 300 packs of 500 chunks (some 15 GB) until its
// index is complete.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	origin, known := namesOnly{sizes: map[string]int64{}}, newIndex()
	var n uint64
	for range 300 {
		var x packIndex
		off := uint32(packHeader)
		for range 500 {
			n++
			d := Sum(binary.LittleEndian.AppendUint64(nil, n))
			x = x.append(entry{digest: d, offset: off, stored: 50_000, size: ChunkSize})
			off += 50_000
		}
		name := Sum(x)
		known.add(newPack(name, int64(off), x, packSeal{}))
		origin.sizes[packKey(name)] = int64(off)
	}
	log := indexLog{path: filepath.Join(dir, "packs.idx")}
	if err := log.create(known); err != nil {
		b.Fatal(err)
	}
	log.close()
	for b.Loop() {
		s, err := Open(b.Context(), Options{Dir: dir, Origin: origin})
		if err != nil {
			b.Fatal(err)
		}
		if !s.Has(Sum(binary.LittleEndian.AppendUint64(nil, 77_777))) {
			b.Fatal("a chunk is missing")
		}
		s.Close()
	}
}
