package store_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// tap is an origin whose streams give as many bytes as the test lets through.
type tap struct {
	*storetest.Faults
	opens atomic.Int64

	mu    sync.Mutex
	cond  *sync.Cond
	limit int64 // offset up to which streams may go
	cut   int64 // offset at which they break, once; 0: never
	wrong func(key string, off int64, p []byte)
}

func newTap() *tap {
	p := &tap{Faults: &storetest.Faults{Origin: storetest.NewMemOrigin()}, limit: 1 << 40}
	p.cond = sync.NewCond(&p.mu)
	return p
}

func (p *tap) let(limit int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = limit
	p.cond.Broadcast()
}

func (p *tap) breakAt(off int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = off
}

func (p *tap) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	size, err := p.Origin.Size(ctx, key)
	if err != nil {
		return nil, err
	}
	p.opens.Add(1)
	stop := context.AfterFunc(ctx, func() { p.mu.Lock(); p.cond.Broadcast(); p.mu.Unlock() })
	return &flow{ctx: ctx, tap: p, key: key, off: off, size: size, stop: stop}, nil
}

type flow struct {
	ctx       context.Context
	tap       *tap
	key       string
	off, size int64
	stop      func() bool
}

func (f *flow) Close() error { f.stop(); return nil }

func (f *flow) Read(b []byte) (int, error) {
	f.tap.mu.Lock()
	defer f.tap.mu.Unlock()
	for f.off >= f.tap.limit && f.ctx.Err() == nil {
		f.tap.cond.Wait()
	}
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	if f.off == f.size {
		return 0, io.EOF
	}
	end := min(f.size, f.off+int64(len(b)), f.tap.limit)
	if c := f.tap.cut; c > 0 {
		if f.off >= c {
			f.tap.cut = 0
			return 0, io.ErrUnexpectedEOF
		}
		end = min(end, c)
	}
	b = b[:end-f.off]
	if err := f.tap.Origin.ReadAt(f.ctx, f.key, b, f.off); err != nil {
		return 0, err
	}
	if f.tap.wrong != nil {
		f.tap.wrong(f.key, f.off, b)
	}
	f.off = end
	return len(b), nil
}

// hot is a store on an empty machine, and a hot pack in its origin: pieces of 128
// KiB, which take half of that.
type hot struct {
	*store.Store
	tap    *tap
	cache  *storetest.MemCache
	packs  []store.HotPack
	chunks []store.Chunk
	pieces [][]byte
}

func newHot(t *testing.T, n int, o store.Options) *hot {
	t.Helper()
	h := &hot{tap: newTap(), cache: storetest.NewMemCache()}
	for i := range n {
		h.pieces = append(h.pieces, storetest.Data(uint64(i+1), store.ChunkSize))
	}
	first := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: h.tap, Cache: storetest.NewMemCache()})
	h.chunks, _ = storetest.Commit(t, first, h.pieces...)
	order := slices.Clone(h.chunks)
	slices.Reverse(order) // other than they lie in the batch's pack
	slices.Reverse(h.pieces)
	h.chunks = order
	var err error
	if h.packs, err = first.WriteHot(t.Context(), append(order, order[0])); err != nil {
		t.Fatal(err)
	}
	o.Dir, o.Origin, o.Cache = t.TempDir(), h.tap, h.cache
	h.Store = storetest.With(t, o)
	if !h.Has(h.chunks[0].Digest) { // and its index is loaded
		t.Fatal("not stored")
	}
	return h
}

func (h *hot) wantCached(t *testing.T, from, to int) {
	t.Helper()
	buf := make([]byte, store.ChunkSize)
	for i := from; i < to; i++ {
		until(func() bool { return h.cache.Has(h.chunks[i].Digest) })
		if ok, err := h.cache.Read(h.chunks[i], buf); !ok || err != nil || !bytes.Equal(buf, h.pieces[i]) {
			t.Fatalf("chunk %d is not in the cache: %v, %v", i, ok, err)
		}
	}
}

func (h *hot) wantAbsent(t *testing.T, i int) {
	t.Helper()
	if h.cache.Has(h.chunks[i].Digest) {
		t.Fatalf("chunk %d is in the cache", i)
	}
}

// start streams in the background; the result comes when it is done.
func (h *hot) start(ctx context.Context) <-chan streamed {
	c := make(chan streamed, 1)
	go func() {
		got, err := h.Stream(ctx, h.packs)
		c <- streamed{got, err}
	}()
	return c
}

type streamed struct {
	store.Streamed
	err error
}

func TestHotPackHasTheOrderOfUse(t *testing.T) {
	h := newHot(t, 5, store.Options{})
	if len(h.packs) != 1 {
		t.Fatalf("%d packs", len(h.packs))
	}
	var got []store.Chunk
	for _, f := range h.packs[0].Frames {
		got = append(got, f.Chunk)
	}
	if !slices.Equal(got, h.chunks) {
		t.Fatalf("%v, want %v", got, h.chunks)
	}
}

func TestStream(t *testing.T) {
	h := newHot(t, 40, store.Options{})
	h.tap.Before(func(_ context.Context, op storetest.Op) error {
		if op.Name == "read" {
			t.Errorf("%+v beside the stream", op)
		}
		return nil
	})
	got, err := h.Stream(t.Context(), h.packs)
	if err != nil {
		t.Fatal(err)
	}
	f := h.packs[0].Frames
	want := store.Streamed{Chunks: 40, Bytes: 40 * store.ChunkSize, Stored: int64(f[39].Offset+f[39].Stored) - 16}
	if got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	h.wantCached(t, 0, 40)
	if n := h.tap.opens.Load(); n != 1 {
		t.Fatalf("%d requests", n)
	}
	// Once more: nothing to do.
	if got, err := h.Stream(t.Context(), h.packs); err != nil || got != (store.Streamed{}) || h.tap.opens.Load() != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestReadersWaitForTheStream(t *testing.T) {
	h := newHot(t, 8, store.Options{Patience: time.Hour})
	h.tap.let(16)
	done := h.start(t.Context())
	until(func() bool { return h.tap.opens.Load() == 1 })
	reads := h.tap.Count("read")
	var wg sync.WaitGroup
	for i, c := range h.chunks {
		for range 3 {
			wg.Go(func() { wantRead(t, h.Store, c, h.pieces[i]) })
		}
	}
	h.tap.let(1 << 40)
	wg.Wait()
	if got := <-done; got.err != nil || got.Chunks != 8 {
		t.Fatalf("%+v", got)
	}
	if n := h.tap.Count("read"); n != reads {
		t.Fatalf("%d chunks were read a second time", n-reads)
	}
}

func TestReadersDoNotWaitForAStreamThatStandsStill(t *testing.T) {
	h := newHot(t, 8, store.Options{Patience: time.Millisecond})
	h.tap.let(16)
	done := h.start(t.Context())
	until(func() bool { return h.tap.opens.Load() == 1 })
	wantRead(t, h.Store, h.chunks[3], h.pieces[3])
	h.wantCached(t, 3, 4)
	h.tap.let(1 << 40)
	if got := <-done; got.err != nil || got.Chunks != 7 || got.Known != 1 {
		t.Fatalf("%+v", got)
	}
	h.wantCached(t, 0, 8)
}

func TestReadersDoNotWaitForWhatIsFarAhead(t *testing.T) {
	h := newHot(t, 40, store.Options{Patience: time.Hour})
	h.tap.let(16)
	ctx, cancel := context.WithCancel(t.Context())
	done := h.start(ctx)
	until(func() bool { return h.tap.opens.Load() == 1 })
	wantRead(t, h.Store, h.chunks[39], h.pieces[39]) // 2.5 MB ahead, and nothing has come
	h.wantAbsent(t, 0)
	cancel()
	if got := <-done; !fault.Is(got.err, fault.Cancelled) || got.Chunks != 0 {
		t.Fatalf("%+v", got)
	}
}

func TestStreamThatBreaksLetsReadersGoAndGoesOn(t *testing.T) {
	h := newHot(t, 8, store.Options{Patience: time.Hour})
	f := h.packs[0].Frames
	h.tap.let(int64(f[2].Offset))
	h.tap.breakAt(int64(f[2].Offset) + 5)
	done := h.start(t.Context())
	until(func() bool { return h.cache.Has(h.chunks[1].Digest) })
	var wg sync.WaitGroup
	for i := 2; i < 8; i++ {
		wg.Go(func() { wantRead(t, h.Store, h.chunks[i], h.pieces[i]) })
	}
	h.tap.let(1 << 40)
	wg.Wait()
	if got := <-done; got.err != nil || got.Damaged != 0 {
		t.Fatalf("%+v: %v", got, got.err)
	}
	h.wantCached(t, 0, 8)
}

// TestStreamsAtOnce has twenty starts of one image bring its hot pack.
func TestStreamsAtOnce(t *testing.T) {
	h := newHot(t, 40, store.Options{})
	h.tap.let(16)
	before := h.Stats().StoredBytes
	var all []<-chan streamed
	for range 20 {
		all = append(all, h.start(t.Context()))
	}
	until(func() bool { return h.tap.opens.Load() > 0 })
	h.tap.let(1 << 40)
	var sum store.Streamed
	for _, done := range all {
		got := <-done
		if got.err != nil {
			t.Fatal(got.err)
		}
		h.wantCached(t, 0, 40) // for each of them
		sum.Chunks, sum.Stored = sum.Chunks+got.Chunks, sum.Stored+got.Stored
	}
	last := h.packs[0].Frames[39]
	want := int64(last.Offset+last.Stored) - 16
	if n := h.tap.opens.Load(); n != 1 || sum.Chunks != 40 || sum.Stored != want || h.Stats().StoredBytes-before != want {
		t.Fatalf("%d requests, %+v, %d bytes, want %d", n, sum, h.Stats().StoredBytes-before, want)
	}
}

func TestAStreamThatIsGivenUpIsContinuedByAnother(t *testing.T) {
	h := newHot(t, 40, store.Options{})
	f := h.packs[0].Frames
	h.tap.let(int64(f[10].Offset))
	ctx, cancel := context.WithCancel(t.Context())
	first := h.start(ctx)
	until(func() bool { return h.cache.Has(h.chunks[9].Digest) })
	var others []<-chan streamed
	for range 3 {
		others = append(others, h.start(t.Context()))
	}
	cancel()
	if got := <-first; !fault.Is(got.err, fault.Cancelled) || got.Chunks != 10 {
		t.Fatalf("%+v", got)
	}
	h.tap.let(1 << 40)
	var sum int64
	for _, done := range others {
		got := <-done
		if got.err != nil {
			t.Fatal(got.err)
		}
		sum += got.Chunks
	}
	if n := h.tap.opens.Load(); n != 2 || sum != 30 {
		t.Fatalf("%d requests, %d chunks", n, sum)
	}
	h.wantCached(t, 0, 40)
}

// TestStreamsOfDifferentPacks: what two packs have in common comes once.
func TestStreamsOfDifferentPacks(t *testing.T) {
	h := newHot(t, 20, store.Options{})
	order := slices.Clone(h.chunks)
	slices.Reverse(order)
	other, err := h.WriteHot(t.Context(), order[:15])
	if err != nil {
		t.Fatal(err)
	}
	h.cache.Clear()
	h.tap.let(16)
	first := h.start(t.Context())
	until(func() bool { return h.tap.opens.Load() == 1 })
	second := make(chan streamed, 1)
	go func() {
		got, err := h.Stream(t.Context(), other)
		second <- streamed{got, err}
	}()
	h.tap.let(1 << 40)
	a, b := <-first, <-second
	if a.err != nil || b.err != nil || a.Chunks != 20 || b.Chunks != 0 {
		t.Fatalf("%+v, %+v", a, b)
	}
}

func TestStreamOfAnOriginThatIsGone(t *testing.T) {
	h := newHot(t, 8, store.Options{})
	h.tap.Origin = storetest.NewMemOrigin()
	if got, err := h.Stream(t.Context(), h.packs); !fault.Is(err, fault.NotFound) || got != (store.Streamed{}) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestStreamOfAnOriginThatIsSilent(t *testing.T) {
	h := newHot(t, 8, store.Options{ReadTimeout: 20 * time.Millisecond})
	h.tap.let(16)
	if _, err := h.Stream(t.Context(), h.packs); !fault.Is(err, fault.Timeout) {
		t.Fatal(err)
	}
	if n := h.tap.opens.Load(); n != 3 {
		t.Fatalf("%d attempts", n)
	}
}

func TestWrongBytesInAHotPack(t *testing.T) {
	h := newHot(t, 8, store.Options{Patience: time.Hour})
	bad := h.packs[0].Frames[4]
	h.tap.wrong = func(_ string, off int64, p []byte) {
		if at := int64(bad.Offset) + 9; off <= at && at < off+int64(len(p)) {
			p[at-off] ^= 1
		}
	}
	h.tap.let(16)
	done := h.start(t.Context())
	until(func() bool { return h.tap.opens.Load() == 1 })
	var wg sync.WaitGroup
	wg.Go(func() { wantRead(t, h.Store, h.chunks[4], h.pieces[4]) }) // from another pack
	h.tap.let(1 << 40)
	got := <-done
	wg.Wait()
	if got.err != nil || got.Damaged != 1 || got.Chunks != 7 {
		t.Fatalf("%+v", got)
	}
	h.wantCached(t, 0, 8)
}

// An index that belongs to another pack ends the stream soon, whatever it says.
func TestIndexOfAnotherPack(t *testing.T) {
	h := newHot(t, 40, store.Options{})
	for i := range h.packs[0].Frames {
		h.packs[0].Frames[i].Offset += 3
	}
	got, err := h.Stream(t.Context(), h.packs)
	wantClass(t, err, fault.Corrupt)
	if got.Damaged < 8 || got.Chunks != 0 {
		t.Fatalf("%+v", got)
	}
}

func TestStreamReadsOnlyWhatIsMissing(t *testing.T) {
	h := newHot(t, 40, store.Options{})
	for i := range h.chunks {
		if i != 2 && i != 4 && i != 30 {
			if err := h.cache.Write(h.chunks[i], h.pieces[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := h.Stream(t.Context(), h.packs)
	if err != nil || got.Chunks != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := h.tap.opens.Load(); n != 2 { // 2 and 4 are near each other
		t.Fatalf("%d requests", n)
	}
	h.wantCached(t, 0, 40)
}

func TestStreamEndsWithTheStore(t *testing.T) {
	h := newHot(t, 8, store.Options{})
	h.tap.let(16)
	done := h.start(context.WithoutCancel(t.Context()))
	until(func() bool { return h.tap.opens.Load() == 1 })
	h.Close()
	if got := <-done; !fault.Is(got.err, fault.Cancelled) {
		t.Fatalf("%+v", got)
	}
}
