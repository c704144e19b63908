package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// objects lists an origin's keys.
func objects(t testing.TB, o store.Origin) (keys []string) {
	t.Helper()
	if err := o.List(context.Background(), "", func(o store.Object) error { keys = append(keys, o.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	return keys
}

// wantEmpty fails if there is something in the directory where packs are written.
func wantEmpty(t testing.TB, dir string) {
	t.Helper()
	if left, err := os.ReadDir(filepath.Join(dir, "packing")); err != nil || len(left) != 0 {
		t.Fatalf("left over: %v, %v", left, err)
	}
}

func TestAddSizes(t *testing.T) {
	s := storetest.New(t)
	b := s.Begin(t.Context())
	defer b.Abort()
	for _, n := range []int{0, store.ChunkSize + 1} {
		_, _, err := b.Add(storetest.Data(1, n))
		wantClass(t, err, fault.Invalid)
	}
	for _, n := range []int{1, store.ChunkSize} {
		c, added, err := b.Add(make([]byte, n))
		if err != nil || added || !c.Digest.IsZero() || c.Size != uint32(n) {
			t.Fatalf("hole: %v, %v, %v", c, added, err)
		}
		data := storetest.Data(1, n)
		c, added, err = b.Add(data)
		if err != nil || !added || c.Digest != store.Sum(data) || c.Size != uint32(n) {
			t.Fatalf("%v, %v, %v", c, added, err)
		}
	}
	w, err := b.Commit(t.Context())
	if err != nil || w.Chunks != 2 || w.NewChunks != 2 || w.Bytes != store.ChunkSize+1 || w.NewBytes != store.ChunkSize+1 {
		t.Fatalf("%+v, %v", w, err)
	}
}

func TestNothingNew(t *testing.T) {
	s := storetest.New(t)
	w, err := s.Begin(t.Context()).Commit(t.Context())
	if err != nil || len(w.Packs) != 0 || w.Chunks != 0 || w.StoredBytes != 0 {
		t.Fatalf("%+v, %v", w, err)
	}
}

// A batch is seen as a whole, when it is committed.
func TestVisibility(t *testing.T) {
	m := storetest.NewMemOrigin()
	dir := t.TempDir()
	s := storetest.With(t, store.Options{Dir: dir, Origin: m})
	b := s.Begin(t.Context())
	data := bytes.Clone(storetest.Data(1, 5000))
	c, _, err := b.Add(data)
	if err != nil {
		t.Fatal(err)
	}
	clear(data) // it is ours again
	if s.Has(c.Digest) || len(objects(t, m)) != 0 {
		t.Fatal("seen before it is committed")
	}
	if _, err := b.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, dir)
	wantRead(t, s, c, storetest.Data(1, 5000))
	b.Abort() // too late, and harmless
	wantRead(t, s, c, storetest.Data(1, 5000))
	_, _, err = b.Add(storetest.Data(2, 10))
	wantClass(t, err, fault.Invalid)
	wantClass(t, b.Use(c), fault.Invalid)
	_, err = b.Commit(t.Context())
	wantClass(t, err, fault.Invalid)
}

func TestAbort(t *testing.T) {
	m := storetest.NewMemOrigin()
	dir := t.TempDir()
	s := storetest.With(t, store.Options{Dir: dir, Origin: m})
	for _, how := range []string{"abort", "cancel", "cancel at commit", "close"} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b := s.Begin(ctx)
			for i := range 50 {
				if _, _, err := b.Add(storetest.Data(uint64(i), 50_000)); err != nil {
					t.Fatal(err)
				}
			}
			switch how {
			case "cancel":
				cancel()
				_, _, err := b.Add(storetest.Data(99, 10))
				wantClass(t, err, fault.Cancelled)
				_, err = b.Commit(t.Context())
				wantClass(t, err, fault.Cancelled)
			case "cancel at commit":
				gone, cancel := context.WithCancel(t.Context())
				cancel()
				_, err := b.Commit(gone)
				wantClass(t, err, fault.Cancelled)
			case "close":
				s.Close()
				_, _, err := b.Add(storetest.Data(99, 10))
				wantClass(t, err, fault.Cancelled)
			}
			b.Abort()
			if keys := objects(t, m); len(keys) != 0 {
				t.Fatalf("left in the origin: %v", keys)
			}
			wantEmpty(t, dir)
		})
	}
}

// Concurrent adders: each chunk once, all counted, all readable.
func TestConcurrentAdd(t *testing.T) {
	s := storetest.New(t)
	b := s.Begin(t.Context())
	defer b.Abort()
	const workers, pieces = 8, 60
	var wg sync.WaitGroup
	var added atomic.Int32
	for w := range workers {
		wg.Go(func() {
			buf := make([]byte, 3000)
			for i := range pieces {
				copy(buf, storetest.Data(uint64((i+w*7)%pieces), 3000))
				_, isNew, err := b.Add(buf)
				if err != nil {
					t.Error(err)
				}
				if isNew {
					added.Add(1)
				}
			}
		})
	}
	wg.Wait()
	w, err := b.Commit(t.Context())
	if err != nil || w.Chunks != pieces || w.NewChunks != pieces || w.Bytes != pieces*3000 || added.Load() != pieces || len(w.Packs) != 1 {
		t.Fatalf("%+v, added %d, %v", w, added.Load(), err)
	}
	for i := range pieces {
		c, data := storetest.Piece(uint64(i), 3000)
		wantRead(t, s, c, data)
	}
}

// The same chunks in the same order are the same packs.
func TestDeterministic(t *testing.T) {
	var pieces [][]byte
	for i := range 60 {
		pieces = append(pieces, storetest.Data(uint64(i), 1+i*600))
	}
	_, one := storetest.Commit(t, storetest.New(t), pieces...)
	_, two := storetest.Commit(t, storetest.New(t), pieces...)
	if len(one.Packs) != 1 || one.Packs[0] != two.Packs[0] || one.StoredBytes != two.StoredBytes {
		t.Fatalf("%+v, %+v", one, two)
	}
}

// Packs are closed when they are large enough, in bytes or in chunks.
func TestPacksRollOver(t *testing.T) {
	random := make([]byte, 26<<20)
	blake3.New().Digest().Read(random)
	tiny := make([]byte, 4*33_000)
	for i := range 33_000 {
		binary.LittleEndian.PutUint32(tiny[4*i:], uint32(i+1))
	}
	for name, test := range map[string]struct {
		data  []byte
		size  int
		packs int
	}{
		"bytes":  {random, store.ChunkSize, 2},
		"chunks": {tiny, 4, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := storetest.Open(t, t.TempDir())
			b := s.Begin(t.Context())
			defer b.Abort()
			var chunks []store.Chunk
			for at := 0; at < len(test.data); at += test.size {
				c, _, err := b.Add(test.data[at : at+test.size])
				if err != nil {
					t.Fatal(err)
				}
				chunks = append(chunks, c)
			}
			w, err := b.Commit(t.Context())
			if err != nil || len(w.Packs) != test.packs {
				t.Fatalf("%d packs, %v", len(w.Packs), err)
			}
			for i := 0; i < len(chunks); i += 97 {
				wantRead(t, s, chunks[i], test.data[i*test.size:][:test.size])
			}
		})
	}
}

// Written.Packs names every pack that the batch's chunks are in.
func TestUse(t *testing.T) {
	s := storetest.New(t)
	parent, first := storetest.Commit(t, s, storetest.Data(1, 5000))
	_, second := storetest.Commit(t, s, storetest.Data(2, 5000))
	b := s.Begin(t.Context())
	defer b.Abort()
	wantClass(t, b.Use(store.Chunk{Digest: parent[0].Digest, Size: 4999}), fault.NotFound)
	for range 2 {
		if err := b.Use(parent[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Use(store.Chunk{Size: 77}); err != nil {
		t.Fatal(err)
	}
	unknown, _ := storetest.Piece(9, 5000)
	wantClass(t, b.Use(unknown), fault.NotFound)
	if _, added, err := b.Add(storetest.Data(2, 5000)); err != nil || added {
		t.Fatal(added, err)
	}
	if _, added, err := b.Add(storetest.Data(3, 5000)); err != nil || !added {
		t.Fatal(added, err)
	}
	w, err := b.Commit(t.Context())
	if err != nil || w.Chunks != 3 || w.NewChunks != 1 || w.Bytes != 15_000 || w.NewBytes != 5000 || len(w.Packs) != 3 {
		t.Fatalf("%+v, %v", w, err)
	}
	in := map[store.Digest]bool{}
	for _, p := range w.Packs {
		in[p] = true
	}
	if !in[first.Packs[0]] || !in[second.Packs[0]] {
		t.Fatal("the old packs are not named")
	}
}

// An origin that fails while packs are put: the commit fails with its error, the
// next attempt succeeds, and writes only what is missing.
func TestCommitFails(t *testing.T) {
	f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
	dir := t.TempDir()
	s := storetest.With(t, store.Options{Dir: dir, Origin: f})
	f.Before(func(_ context.Context, op storetest.Op) error {
		if op.Name == "put" {
			return fault.New(fault.Unavailable, "503")
		}
		return nil
	})
	b := s.Begin(t.Context())
	c, _, err := b.Add(storetest.Data(1, 5000))
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Commit(t.Context())
	wantClass(t, err, fault.Unavailable)
	wantEmpty(t, dir)
	if s.Has(c.Digest) {
		t.Fatal("a chunk of a failed commit is there")
	}
	f.Before(nil)
	storetest.Commit(t, s, storetest.Data(1, 5000))
	wantRead(t, s, c, storetest.Data(1, 5000))
}

func BenchmarkAdd(b *testing.B) {
	for name, piece := range map[string]func(i int) []byte{
		"text": func() func(int) []byte {
			line := []byte("def handler(request):\n    return {'status': 200, 'body': render(request.path)}\n")
			base := bytes.Repeat(line, store.ChunkSize/len(line)+1)[:store.ChunkSize]
			r := storetest.Data(5, store.ChunkSize)
			for i := 0; i < len(base); i += 23 {
				base[i] = 'a' + r[i&^1]%26
			}
			return func(i int) []byte { binary.LittleEndian.PutUint64(base, uint64(i)+1); return base }
		}(),
		"random": func() func(int) []byte {
			base := make([]byte, store.ChunkSize)
			blake3.New().Digest().Read(base)
			return func(i int) []byte { binary.LittleEndian.PutUint64(base, uint64(i)+1); return base }
		}(),
	} {
		b.Run(name, func(b *testing.B) {
			s, _ := storetest.Open(b, b.TempDir())
			batch := s.Begin(b.Context())
			defer batch.Abort()
			b.SetBytes(store.ChunkSize)
			i := 0
			for b.Loop() {
				i++
				if _, _, err := batch.Add(piece(i)); err != nil {
					b.Fatal(err)
				}
			}
			w, err := batch.Commit(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(w.StoredBytes)/float64(w.NewBytes), "ratio")
		})
	}
	b.Run("known", func(b *testing.B) {
		s, _ := storetest.Open(b, b.TempDir())
		var pieces [][]byte
		for i := range 64 {
			pieces = append(pieces, storetest.Data(uint64(i), store.ChunkSize))
		}
		storetest.Commit(b, s, pieces...)
		batch := s.Begin(b.Context())
		defer batch.Abort()
		b.SetBytes(store.ChunkSize)
		for i := 0; b.Loop(); i++ {
			if _, _, err := batch.Add(pieces[i%64]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkReadChunk(b *testing.B) {
	dir := b.TempDir()
	s, _ := storetest.Open(b, dir)
	var pieces [][]byte
	for i := range 256 {
		pieces = append(pieces, storetest.Data(uint64(i), store.ChunkSize))
	}
	chunks, _ := storetest.Commit(b, s, pieces...)
	dst := make([]byte, store.ChunkSize)
	run := func(s *store.Store) func(b *testing.B) {
		return func(b *testing.B) {
			b.SetBytes(store.ChunkSize)
			for i := 0; b.Loop(); i++ {
				if _, err := s.ReadChunk(b.Context(), chunks[i%len(chunks)], dst); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	for _, c := range chunks {
		s.ReadChunk(b.Context(), c, dst)
	}
	b.Run("slab", run(s))
	origin, err := store.OpenDir(filepath.Join(dir, "store"))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("origin", run(storetest.With(b, store.Options{Dir: b.TempDir(), Origin: origin})))
}
