package store_test

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// remote is a store over an origin with faults, without a cache, and pieces in it.
func remote(t *testing.T, o store.Options, pieces ...[]byte) (*store.Store, *storetest.Faults, []store.Chunk) {
	t.Helper()
	f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
	o.Dir, o.Origin = t.TempDir(), f
	s := storetest.With(t, o)
	chunks, _ := storetest.Commit(t, s, pieces...)
	return s, f, chunks
}

func read(ctx context.Context, s *store.Store, c store.Chunk) ([]byte, error) {
	dst := make([]byte, c.Size)
	_, err := s.ReadChunk(ctx, c, dst)
	return dst, err
}

func wantRead(t *testing.T, s *store.Store, c store.Chunk, want []byte) {
	t.Helper()
	if got, err := read(t.Context(), s, c); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %v: %v, equal: %v", c, err, bytes.Equal(got, want))
	}
}

func wantClass(t *testing.T, err error, class fault.Class) {
	t.Helper()
	if !fault.Is(err, class) {
		t.Fatalf("error %v of class %q, want %q", err, fault.ClassOf(err), class)
	}
}

// until waits for a condition that other goroutines bring about.
func until(cond func() bool) {
	for !cond() {
		runtime.Gosched()
	}
}

func TestReadInvalid(t *testing.T) {
	s := storetest.New(t)
	c, _ := storetest.Piece(1, 100)
	for _, c := range []store.Chunk{{}, {Digest: c.Digest}, {Digest: c.Digest, Size: store.ChunkSize + 1}} {
		_, err := read(t.Context(), s, c)
		wantClass(t, err, fault.Invalid)
	}
	_, err := s.ReadChunk(t.Context(), c, make([]byte, 99))
	wantClass(t, err, fault.Invalid)
}

func TestUnknownChunk(t *testing.T) {
	s := storetest.New(t)
	c, _ := storetest.Piece(1, 100)
	_, err := read(t.Context(), s, c)
	wantClass(t, err, fault.Corrupt)
	if !strings.Contains(err.Error(), c.Digest.Short()) || !strings.Contains(fault.HintOf(err), "again") {
		t.Fatalf("%v, hint %q", err, fault.HintOf(err))
	}
}

// Many who miss the same chunk make one read of the origin.
func TestConcurrentMisses(t *testing.T) {
	data := storetest.Data(1, store.ChunkSize)
	s, f, chunks := remote(t, store.Options{Cache: storetest.NewMemCache()}, data)
	gate := make(chan struct{})
	f.Before(func(context.Context, storetest.Op) error { <-gate; return nil })
	const readers = 50
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if got, err := read(t.Context(), s, chunks[0]); err != nil || !bytes.Equal(got, data) {
				t.Error(err)
			}
		})
	}
	until(func() bool { return s.Stats().JoinedReads == readers-1 })
	close(gate)
	wg.Wait()
	if n := f.Count("read"); n != 1 {
		t.Fatalf("%d reads of the origin", n)
	}
	if st := s.Stats(); st.OriginReads != 1 || st.OriginBytes != store.ChunkSize || st.StoredBytes >= store.ChunkSize {
		t.Fatalf("%+v", st)
	}
}

// A reader that goes away does not disturb the others; when all have gone, the fetch ends.
func TestReadersLeave(t *testing.T) {
	data := storetest.Data(1, 1000)
	s, f, chunks := remote(t, store.Options{}, data)
	gate, ended := make(chan struct{}), make(chan struct{})
	f.Before(func(ctx context.Context, op storetest.Op) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			close(ended)
			return ctx.Err()
		}
	})
	ctx1, leave1 := context.WithCancel(t.Context())
	ctx2, leave2 := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	go func() { _, err := read(ctx1, s, chunks[0]); errs <- err }()
	until(func() bool { return f.Count("read") == 1 })
	go func() { _, err := read(ctx2, s, chunks[0]); errs <- err }()
	until(func() bool { return s.Stats().JoinedReads == 1 })
	leave1()
	wantClass(t, <-errs, fault.Cancelled)
	select {
	case <-ended:
		t.Fatal("the fetch ended with its first reader")
	default:
	}
	leave2()
	wantClass(t, <-errs, fault.Cancelled)
	<-ended
	close(gate)
	wantRead(t, s, chunks[0], data)
}

func TestReadTimeout(t *testing.T) {
	s, f, chunks := remote(t, store.Options{ReadTimeout: time.Millisecond}, storetest.Data(1, 1000))
	f.Before(func(ctx context.Context, op storetest.Op) error { <-ctx.Done(); return ctx.Err() })
	_, err := read(t.Context(), s, chunks[0])
	wantClass(t, err, fault.Timeout)
}

func TestCloseWhileTheOriginHangs(t *testing.T) {
	s, f, chunks := remote(t, store.Options{}, storetest.Data(1, 1000))
	f.Before(func(ctx context.Context, op storetest.Op) error { <-ctx.Done(); return ctx.Err() })
	errs := make(chan error)
	go func() { _, err := read(t.Context(), s, chunks[0]); errs <- err }()
	until(func() bool { return f.Count("read") == 1 })
	s.Close()
	wantClass(t, <-errs, fault.Cancelled)
	_, err := read(t.Context(), s, chunks[0])
	wantClass(t, err, fault.Cancelled)
}

func TestParallelReadsAreBounded(t *testing.T) {
	var pieces [][]byte
	for i := range 20 {
		pieces = append(pieces, storetest.Data(uint64(i), 1000))
	}
	s, f, chunks := remote(t, store.Options{Parallel: 3}, pieces...)
	var now, most atomic.Int32
	f.Before(func(context.Context, storetest.Op) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		for range 100 {
			runtime.Gosched()
		}
		return nil
	})
	var wg sync.WaitGroup
	for i, c := range chunks {
		wg.Go(func() {
			if got, err := read(t.Context(), s, c); err != nil || !bytes.Equal(got, pieces[i]) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() > 3 {
		t.Fatalf("%d reads at once", most.Load())
	}
}

// brokenCache fails at everything.
type brokenCache struct{ storetest.MemCache }

func (*brokenCache) Read(store.Chunk, []byte) (bool, error) {
	return false, fault.New(fault.Internal, "broken")
}
func (*brokenCache) Write(store.Chunk, []byte) error { return fault.New(fault.DiskFull, "broken") }

func TestBrokenCache(t *testing.T) {
	data := storetest.Data(1, 1000)
	s, _, chunks := remote(t, store.Options{Cache: &brokenCache{}}, data)
	wantRead(t, s, chunks[0], data)
	wantRead(t, s, chunks[0], data)
	until(func() bool { return s.Stats().CacheFailures == 4 })
	if st := s.Stats(); st.OriginReads != 2 {
		t.Fatalf("%+v", st)
	}
}

// An origin that does not answer when the store opens may answer later.
func TestLoadingIsTriedAgain(t *testing.T) {
	data := storetest.Data(1, 1000)
	_, f, chunks := remote(t, store.Options{}, data)
	f.Before(func(context.Context, storetest.Op) error { return fault.New(fault.Unavailable, "no route") })
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: f})
	_, err := read(t.Context(), s, chunks[0])
	wantClass(t, err, fault.Unavailable)
	if s.Has(chunks[0].Digest) {
		t.Fatal("has what nobody knows")
	}
	f.Before(nil)
	wantRead(t, s, chunks[0], data)
}

// What an image has in the cache can be read, whatever the origin does.
func TestCacheDoesNotWaitForTheOrigin(t *testing.T) {
	c, data := storetest.Piece(1, 1000)
	cache := storetest.NewMemCache()
	if err := cache.Write(c, data); err != nil {
		t.Fatal(err)
	}
	f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
	f.Before(func(ctx context.Context, op storetest.Op) error { <-ctx.Done(); return ctx.Err() })
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: f, Cache: cache})
	dst := make([]byte, c.Size)
	tier, err := s.Reader([]store.Digest{{1}}, []store.Chunk{c}).ReadChunk(t.Context(), c, dst)
	if err != nil || tier != store.FromCache || !bytes.Equal(dst, data) {
		t.Fatal(tier, err)
	}
	if n := len(f.Ops()); n != 0 {
		t.Fatalf("%d operations on the origin", n)
	}
}

// Without an image, a chunk of the cache is its owners': somebody else's.
func TestCacheIsNotForEverybody(t *testing.T) {
	c, data := storetest.Piece(1, 1000)
	cache := storetest.NewMemCache()
	if err := cache.Write(c, data); err != nil {
		t.Fatal(err)
	}
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: storetest.NewMemOrigin(), Cache: cache})
	got, err := read(t.Context(), s, c)
	wantClass(t, err, fault.Corrupt)
	if !bytes.Equal(got, make([]byte, c.Size)) {
		t.Fatal("something was read")
	}
}

// Reading an image looks at the packs that it names, and at no others.
func TestReaderKnowsItsPacksOnly(t *testing.T) {
	f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: f})
	var chunks []store.Chunk
	var packs []store.Digest
	for i := range 20 {
		c, w := storetest.Commit(t, s, storetest.Data(uint64(i), 1000))
		chunks, packs = append(chunks, c...), append(packs, w.Packs...)
	}
	s.Close()
	dir := t.TempDir()
	for _, ops := range []int{5, 1} { // two sizes and two indexes and a frame; then a frame
		s = storetest.With(t, store.Options{Dir: dir, Origin: f})
		r := s.Reader(packs[3:5], chunks[3:5])
		before := len(f.Ops())
		dst := make([]byte, 1000)
		if tier, err := r.ReadChunk(t.Context(), chunks[3], dst); err != nil || tier != store.FromOrigin || !bytes.Equal(dst, storetest.Data(3, 1000)) {
			t.Fatal(tier, err)
		}
		if got := f.Ops()[before:]; len(got) != ops {
			t.Fatalf("%d operations, want %d: %v", len(got), ops, got)
		}
		if f.Count("list") != 1 {
			t.Fatal("the origin was listed")
		}
		s.Close()
	}
}

// A local copy that knows packs which are gone meanwhile costs one read in vain, and
// the chunk is found where it is now.
func TestPackIsGone(t *testing.T) {
	f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
	dir := t.TempDir()
	s := storetest.With(t, store.Options{Dir: dir, Origin: f})
	data := storetest.Data(1, 1000)
	chunks, old := storetest.Commit(t, s, data)
	s.Close()
	// Another machine, for which it is gone, stores it again.
	if err := f.Delete(t.Context(), packKey(old.Packs[0])); err != nil {
		t.Fatal(err)
	}
	other := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: f})
	_, w := storetest.Commit(t, other, storetest.Data(2, 1000), data)

	s = storetest.With(t, store.Options{Dir: dir, Origin: f})
	dst := make([]byte, 1000)
	if _, err := s.Reader(w.Packs, chunks).ReadChunk(t.Context(), chunks[0], dst); err != nil || !bytes.Equal(dst, data) {
		t.Fatal(err)
	}
	if st := s.Stats(); st.DamagedChunks != 0 {
		t.Fatalf("%+v", st)
	}
}

// Opening with a local copy of the indexes reads no pack; without it, each once.
func TestOpeningReads(t *testing.T) {
	f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
	dir := t.TempDir()
	s := storetest.With(t, store.Options{Dir: dir, Origin: f})
	var chunks []store.Chunk
	for i := range 5 {
		c, _ := storetest.Commit(t, s, storetest.Data(uint64(i), 1000))
		chunks = append(chunks, c...)
	}
	s.Close()
	for _, test := range []struct {
		dir   string
		reads int
	}{{dir, 0}, {t.TempDir(), 5}, {dir, 0}} {
		before := f.Count("read")
		s := storetest.With(t, store.Options{Dir: test.dir, Origin: f})
		for _, c := range chunks {
			if !s.Has(c.Digest) {
				t.Fatalf("%v is missing", c)
			}
		}
		if n := f.Count("read") - before; n != test.reads {
			t.Fatalf("%d reads, want %d", n, test.reads)
		}
		s.Close()
	}
}
