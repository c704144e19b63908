package store_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func pieces(n int) (p [][]byte) {
	for i := range n {
		p = append(p, storetest.Data(uint64(i+1), 1000))
	}
	return p
}

func TestPrefetch(t *testing.T) {
	cache := storetest.NewMemCache()
	s, _, chunks := remote(t, store.Options{Cache: cache}, pieces(20)...)
	wantRead(t, s, chunks[3], pieces(4)[3])
	until(func() bool { return cache.Has(chunks[3].Digest) })
	got, err := s.Prefetch(t.Context(), append(chunks, store.Chunk{Size: 5}, store.Chunk{}))
	if err != nil || got != (store.Prefetched{Chunks: 19, Bytes: 19_000, Known: 1}) {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, c := range chunks {
		if !cache.Has(c.Digest) {
			t.Fatalf("%v is not there", c)
		}
	}
	if st := s.Stats(); st.PrefetchedChunks != 19 || st.PrefetchedBytes != 19_000 || st.OriginReads != 20 {
		t.Fatalf("%+v", st)
	}
}

// While readers wait for the origin, nothing is prefetched beside them.
func TestPrefetchIsBelowDemand(t *testing.T) {
	s, f, chunks := remote(t, store.Options{Cache: storetest.NewMemCache()}, pieces(20)...)
	gate := make(chan struct{})
	f.Before(func(context.Context, storetest.Op) error { <-gate; return nil })
	before := f.Count("read")
	var readers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() { wantRead(t, s, chunks[i], pieces(3)[i]) })
	}
	until(func() bool { return f.Count("read") == before+3 })
	done := make(chan error)
	go func() {
		_, err := s.Prefetch(t.Context(), chunks[3:])
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatal(err)
	default:
	}
	if n := f.Count("read"); n != before+3 {
		t.Fatalf("%d reads beside those that are waited for", n-before-3)
	}
	close(gate)
	readers.Wait()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestReaderJoinsPrefetch(t *testing.T) {
	s, f, chunks := remote(t, store.Options{Cache: storetest.NewMemCache()}, pieces(1)...)
	gate := make(chan struct{})
	before := f.Count("read")
	f.Before(func(context.Context, storetest.Op) error { <-gate; return nil })
	done := make(chan error)
	go func() {
		_, err := s.Prefetch(t.Context(), chunks)
		done <- err
	}()
	until(func() bool { return f.Count("read") == before+1 })
	var reader sync.WaitGroup
	reader.Go(func() { wantRead(t, s, chunks[0], pieces(1)[0]) })
	until(func() bool { return s.Stats().JoinedReads == 1 })
	close(gate)
	reader.Wait()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := f.Count("read"); n != before+1 {
		t.Fatalf("%d reads", n-before)
	}
}

func TestPrefetchGivesUp(t *testing.T) {
	s, f, chunks := remote(t, store.Options{Cache: storetest.NewMemCache()}, pieces(100)...)
	f.Before(func(_ context.Context, op storetest.Op) error {
		if strings.HasPrefix(op.Key, "packs/") && op.Name == "read" {
			return fault.New(fault.Unavailable, "gone")
		}
		return nil
	})
	before := f.Count("read")
	_, err := s.Prefetch(t.Context(), chunks)
	wantClass(t, err, fault.Unavailable)
	if n := f.Count("read") - before; n >= 20 {
		t.Fatalf("%d attempts", n)
	}
}

func TestPrefetchIsCancelled(t *testing.T) {
	s, f, chunks := remote(t, store.Options{Cache: storetest.NewMemCache()}, pieces(100)...)
	ctx, cancel := context.WithCancel(t.Context())
	f.Before(func(ctx context.Context, _ storetest.Op) error {
		cancel()
		<-ctx.Done() // nobody waits for it any more
		return ctx.Err()
	})
	if _, err := s.Prefetch(ctx, chunks); !fault.Is(err, fault.Cancelled) {
		t.Fatal(err)
	}
	f.Before(nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prefetch(t.Context(), chunks); !fault.Is(err, fault.Cancelled) {
		t.Fatal(err)
	}
}
