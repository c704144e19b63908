package storetest

import (
	"bytes"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// TestCache is what every store.Cache has to pass. open gives an empty one with
// room for 64 MiB, which the suite closes.
func TestCache(t *testing.T, open func(t *testing.T) store.Cache) {
	tests := map[string]func(*testing.T, store.Cache){
		"Sizes":       cacheSizes,
		"Absent":      cacheAbsent,
		"Runs":        cacheRuns,
		"Twice":       cacheTwice,
		"OwnsNothing": cacheOwnsNothing,
		"Invalid":     cacheInvalid,
		"Pins":        cachePins,
		"Concurrent":  cacheConcurrent,
		"Model":       cacheModel,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			defer func() {
				for range 2 {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}
			}()
			test(t, c)
		})
	}
}

// Piece makes a chunk of n bytes of Data and its reference.
func Piece(seed uint64, n int) (store.Chunk, []byte) {
	data := Data(seed, n)
	return store.Chunk{Digest: store.Sum(data), Size: uint32(n)}, data
}

func keep(t *testing.T, m store.Cache, c store.Chunk, data []byte) {
	t.Helper()
	if err := m.Write(c, data); err != nil {
		t.Fatalf("write %v: %v", c, err)
	}
}

func wantCached(t *testing.T, m store.Cache, c store.Chunk, want []byte) {
	t.Helper()
	dst := bytes.Repeat([]byte{0xaa}, int(c.Size))
	if ok, err := m.Read(c, dst); !ok || err != nil || !bytes.Equal(dst, want) {
		t.Fatalf("read %v: %v, %v, equal: %v", c, ok, err, bytes.Equal(dst, want))
	}
	if !m.Has(c.Digest) {
		t.Fatalf("has %v: false", c)
	}
}

func wantAbsent(t *testing.T, m store.Cache, c store.Chunk) {
	t.Helper()
	if ok, err := m.Read(c, make([]byte, c.Size)); ok || err != nil {
		t.Fatalf("read %v: %v, %v, want it absent", c, ok, err)
	}
}

func cacheSizes(t *testing.T, m store.Cache) {
	for i, n := range []int{1, 2, 4095, 4096, 4097, 8192, 100_000, store.ChunkSize - 1, store.ChunkSize} {
		c, data := Piece(uint64(i), n)
		keep(t, m, c, data)
		wantCached(t, m, c, data)
	}
	for i, n := range []int{1, 2, 4095, 4096, 4097, 8192, 100_000, store.ChunkSize - 1, store.ChunkSize} {
		c, data := Piece(uint64(i), n)
		wantCached(t, m, c, data)
	}
	if st := m.Stats(); st.Chunks != 9 || st.Hits != 18 || st.Misses != 0 || st.Writes != 9 || st.Bytes < 382_528 {
		t.Fatalf("%+v", st)
	}
}

func cacheAbsent(t *testing.T, m store.Cache) {
	c, data := Piece(1, 5000)
	wantAbsent(t, m, c)
	if m.Has(c.Digest) {
		t.Fatal("has what it has not")
	}
	keep(t, m, c, data)
	wantAbsent(t, m, store.Chunk{Digest: c.Digest, Size: 4999})
	wantCached(t, m, c, data)
	if st := m.Stats(); st.Misses != 2 || st.Hits != 1 {
		t.Fatalf("%+v", st)
	}
}

func cacheRuns(t *testing.T, m store.Cache) {
	var chunks []store.Chunk
	var run []byte // what the chunks are, one behind the other
	for i, n := range []int{store.ChunkSize, store.ChunkSize, 100_000, 1, store.ChunkSize} {
		c, data := Piece(uint64(i), n)
		chunks = append(chunks, c)
		run = append(run, data...)
		run = append(run, make([]byte, -n&(store.BlockSize-1))...)
	}
	dst := make([]byte, len(run))
	for _, i := range []int{1, 0, 4, 2} { // not where they belong
		keep(t, m, chunks[i], run[offset(chunks, i):][:chunks[i].Size])
		if m.ReadRun(chunks, dst, 0) {
			t.Fatal("has what it has not")
		}
	}
	keep(t, m, chunks[3], run[offset(chunks, 3):][:1])
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.IntRange(0, len(chunks)-1).Draw(t, "first")
		last := rapid.IntRange(first, len(chunks)-1).Draw(t, "last")
		want := run[offset(chunks, first):offset(chunks, last+1)]
		off := rapid.IntRange(0, len(want)/store.BlockSize).Draw(t, "block") * store.BlockSize
		if rapid.Bool().Draw(t, "odd") {
			off = rapid.IntRange(0, len(want)).Draw(t, "offset")
		}
		n := rapid.IntRange(0, len(want)-off).Draw(t, "length")
		if rapid.Bool().Draw(t, "whole blocks") {
			n &^= store.BlockSize - 1
		}
		dst := bytes.Repeat([]byte{0xee}, n)
		if !m.ReadRun(chunks[first:last+1], dst, int64(off)) {
			t.Fatalf("%d bytes at %d of chunks %d to %d: not there", n, off, first, last)
		}
		if !bytes.Equal(dst, want[off:off+n]) {
			t.Fatalf("%d bytes at %d of chunks %d to %d: wrong", n, off, first, last)
		}
	})
	for _, off := range []int64{-1, 1, 100_000, 1 << 62} {
		if m.ReadRun(chunks[:1], dst[:store.ChunkSize], off) {
			t.Fatalf("run at %d: it is outside", off)
		}
	}
	if m.ReadRun([]store.Chunk{{Digest: chunks[2].Digest, Size: 99_999}}, dst[:1], 0) {
		t.Fatal("has part of a chunk of another size")
	}
	if m.ReadRun(nil, dst[:1], 0) {
		t.Fatal("has something of nothing")
	}
	if st := m.Stats(); st.Misses != 0 {
		t.Fatalf("%+v", st)
	}
}

// offset is where chunk i of a run begins.
func offset(chunks []store.Chunk, i int) (at int) {
	for _, c := range chunks[:i] {
		at += (int(c.Size) + store.BlockSize - 1) &^ (store.BlockSize - 1)
	}
	return at
}

func cacheTwice(t *testing.T, m store.Cache) {
	c, data := Piece(1, 5000)
	keep(t, m, c, data)
	bytes1 := m.Stats().Bytes
	keep(t, m, c, data)
	wantCached(t, m, c, data)
	if st := m.Stats(); st.Chunks != 1 || st.Bytes != bytes1 {
		t.Fatalf("kept twice: %+v", st)
	}
}

func cacheOwnsNothing(t *testing.T, m store.Cache) {
	c, data := Piece(1, 5000)
	buf := bytes.Clone(data)
	keep(t, m, c, buf)
	clear(buf)
	wantCached(t, m, c, data)
}

func cacheInvalid(t *testing.T, m store.Cache) {
	c, data := Piece(1, 5000)
	wantClass(t, m.Write(c, data[:4999]), fault.Invalid)
	wantClass(t, m.Write(store.Chunk{Digest: c.Digest}, nil), fault.Invalid)
	wantClass(t, m.Write(store.Chunk{Size: 5000}, data), fault.Invalid)
	big, bigData := Piece(2, store.ChunkSize+1)
	wantClass(t, m.Write(big, bigData), fault.Invalid)
	_, err := m.Read(c, make([]byte, 4999))
	wantClass(t, err, fault.Invalid)
	if st := m.Stats(); st.Chunks != 0 || st.Bytes != 0 {
		t.Fatalf("%+v", st)
	}
}

func cachePins(t *testing.T, m store.Cache) {
	a, dataA := Piece(1, 5000)
	b, dataB := Piece(2, 5000)
	m.Pin("image", []store.Chunk{a, b, {Size: 4096}})
	keep(t, m, a, dataA)
	m.Pin("other", []store.Chunk{a})
	keep(t, m, b, dataB)
	m.Unpin("image")
	m.Unpin("image")
	m.Unpin("nobody")
	wantCached(t, m, a, dataA)
	wantCached(t, m, b, dataB)
}

func cacheConcurrent(t *testing.T, m store.Cache) {
	const workers, pieces = 8, 40
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			dst := make([]byte, store.ChunkSize)
			for i := range pieces {
				// All write the same, each beginning elsewhere.
				c, data := Piece(uint64((i+w*5)%pieces), 20_000)
				if err := m.Write(c, data); err != nil {
					t.Error(err)
				}
				if ok, err := m.Read(c, dst[:c.Size]); !ok || err != nil || !bytes.Equal(dst[:c.Size], data) {
					t.Errorf("read: %v, %v", ok, err)
				}
				m.Has(c.Digest)
				m.Stats()
			}
		})
	}
	wg.Wait()
	if st := m.Stats(); st.Chunks != pieces || st.Writes != pieces {
		t.Fatalf("%+v", st)
	}
}

func cacheModel(t *testing.T, m store.Cache) {
	model := map[store.Digest]bool{}
	rapid.Check(t, func(r *rapid.T) {
		for range rapid.IntRange(1, 30).Draw(r, "steps") {
			c, data := Piece(uint64(rapid.IntRange(0, 20).Draw(r, "seed")), rapid.SampledFrom([]int{1, 4096, 4097, 9000}).Draw(r, "size"))
			if rapid.Bool().Draw(r, "write") {
				if err := m.Write(c, data); err != nil {
					r.Fatal(err)
				}
				model[c.Digest] = true
			}
			dst := make([]byte, c.Size)
			ok, err := m.Read(c, dst)
			if err != nil || ok != model[c.Digest] || m.Has(c.Digest) != ok || ok && !bytes.Equal(dst, data) {
				r.Fatalf("%v: there %v, want %v, %v", c, ok, model[c.Digest], err)
			}
		}
	})
}
