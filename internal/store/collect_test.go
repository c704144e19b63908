package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// names makes roots of digests, of packs or blobs.
func names(keep ...store.Digest) store.CollectOptions {
	return store.CollectOptions{Roots: func(context.Context) (store.Named, error) {
		set := map[store.Digest]struct{}{}
		for _, d := range keep {
			set[d] = struct{}{}
		}
		return store.Named{Packs: set, Blobs: set}, nil
	}}
}

// collect keeps what is named only.
func collect(t *testing.T, s *store.Store, keep ...store.Digest) store.Collected {
	t.Helper()
	o := names(keep...)
	o.Dry = true
	would, err := s.Collect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.Dry = false
	did, err := s.Collect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	would.Holds = did.Holds // a hold that was released ends in the background
	if would != did {
		t.Fatalf("the dry run says %+v, the run %+v", would, did)
	}
	return did
}

func blob(t *testing.T, s *store.Store, data string) store.Digest {
	t.Helper()
	d, err := s.PutBlob(t.Context(), []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestCollect(t *testing.T) {
	m := storetest.NewMemOrigin()
	dir := t.TempDir()
	s := storetest.With(t, store.Options{Dir: dir, Origin: m, Cache: storetest.NewMemCache()})
	a, wa := storetest.Commit(t, s, storetest.Data(1, 5000))
	b, wb := storetest.Commit(t, s, storetest.Data(2, 5000))
	blobA, blobB := blob(t, s, "a"), blob(t, s, "b")
	wantRead(t, s, b[0], storetest.Data(2, 5000))
	freed := collect(t, s, wa.Packs[0], blobA)
	if freed.Packs != 1 || freed.Blobs != 1 || freed.Bytes <= wb.StoredBytes || freed.Bytes > wb.StoredBytes+50 {
		t.Fatalf("%+v", freed)
	}
	if !s.Has(a[0].Digest) || s.Has(b[0].Digest) {
		t.Fatal("the wrong one is gone")
	}
	if tier, err := s.Reader(nil, b).ReadChunk(t.Context(), b[0], make([]byte, 5000)); err != nil || tier != store.FromCache {
		t.Fatal(tier, err) // a mounted image goes on
	}
	_, err := s.GetBlob(t.Context(), blobB, 10)
	wantClass(t, err, fault.NotFound)
	if keys := objects(t, m); len(keys) != 2 {
		t.Fatalf("left: %v", keys)
	}
	// What was deleted is new again, and the store that opens next agrees.
	_, again := storetest.Commit(t, s, storetest.Data(2, 5000))
	if again.NewChunks != 1 || again.Packs[0] != wb.Packs[0] {
		t.Fatalf("%+v", again)
	}
	collect(t, s, wa.Packs[0])
	s.Close()
	s = storetest.With(t, store.Options{Dir: dir, Origin: m})
	if !s.Has(a[0].Digest) || s.Has(b[0].Digest) {
		t.Fatal("after reopening, the wrong one is gone")
	}
	wantRead(t, s, a[0], storetest.Data(1, 5000))
}

// What holds protect, and from when to when.
func TestHold(t *testing.T) {
	s := storetest.New(t)
	old, wOld := storetest.Commit(t, s, storetest.Data(1, 5000))
	_, wOther := storetest.Commit(t, s, storetest.Data(2, 5000))
	oldBlob, otherBlob := blob(t, s, "old"), blob(t, s, "other")
	release := s.Hold()
	_, wNew := storetest.Commit(t, s, storetest.Data(1, 5000), storetest.Data(3, 5000))
	newBlob := blob(t, s, "new")
	blob(t, s, "old") // relied on again
	if freed := collect(t, s); freed.Packs != 1 || freed.Blobs != 1 {
		t.Fatalf("%+v: want what was there before the hold and was not used since", freed)
	}
	if !s.Has(old[0].Digest) {
		t.Fatal("a chunk that was relied on is gone")
	}
	_, _ = wOther, otherBlob
	// A younger hold does not end the older's protection.
	s.Hold()()
	if freed := collect(t, s); freed.Packs != 0 || freed.Blobs != 0 {
		t.Fatalf("%+v", freed)
	}
	release()
	release() // once is enough, twice is harmless
	if freed := collect(t, s, wOld.Packs[0], newBlob); freed.Packs != 1 || freed.Blobs != 1 {
		t.Fatalf("%+v", freed)
	}
	if freed := collect(t, s, wNew.Packs...); freed.Packs != 0 || freed.Blobs != 1 {
		t.Fatalf("%+v", freed)
	}
	_ = oldBlob
}

// A batch holds by itself, from Begin to its end.
func TestBatchHolds(t *testing.T) {
	s := storetest.New(t)
	old, _ := storetest.Commit(t, s, storetest.Data(1, 5000))
	b := s.Begin(t.Context())
	if err := b.Use(old[0]); err != nil {
		t.Fatal(err)
	}
	if freed := collect(t, s); freed.Packs != 0 {
		t.Fatalf("%+v", freed)
	}
	b.Abort()
	if freed := collect(t, s); freed.Packs != 1 {
		t.Fatalf("%+v", freed)
	}
}

// A hold that begins before Commit takes over what the batch relied on.
func TestHoldBeforeCommit(t *testing.T) {
	s := storetest.New(t)
	old, w := storetest.Commit(t, s, storetest.Data(1, 5000))
	b := s.Begin(t.Context())
	defer b.Abort()
	if _, added, err := b.Add(storetest.Data(1, 5000)); err != nil || added {
		t.Fatal(added, err)
	}
	release := s.Hold()
	if got, err := b.Commit(t.Context()); err != nil || len(got.Packs) != 1 || got.Packs[0] != w.Packs[0] {
		t.Fatalf("%+v, %v", got, err)
	}
	if freed := collect(t, s); freed.Packs != 0 || !s.Has(old[0].Digest) {
		t.Fatalf("%+v", freed)
	}
	release()
	if freed := collect(t, s); freed.Packs != 1 {
		t.Fatalf("%+v", freed)
	}
}

// Collect asks what to keep after it has settled which holds count: an import that
// finishes in between is either held or known.
func TestCollectAsksLate(t *testing.T) {
	s := storetest.New(t)
	_, w := storetest.Commit(t, s, storetest.Data(1, 5000))
	release := s.Hold()
	storetest.Commit(t, s, storetest.Data(2, 5000))
	finish := sync.OnceFunc(release) // its manifest is durable, but not known to this Collect
	o := names(w.Packs[0])
	roots := o.Roots
	o.Roots = func(ctx context.Context) (store.Named, error) { finish(); return roots(ctx) }
	freed, err := s.Collect(t.Context(), o)
	if err != nil || freed.Packs != 0 {
		t.Fatalf("%+v, %v", freed, err)
	}
}

// Damaged packs and foreign objects: the first go when nobody refers to them, the
// second are not ours.
func TestCollectDamaged(t *testing.T) {
	m := storetest.NewMemOrigin()
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m})
	_, w := storetest.Commit(t, s, storetest.Data(1, 5000))
	m.Change(packKey(w.Packs[0]), func(b []byte) []byte { return b[:100] })
	if err := m.Put(t.Context(), "packs/README", strings.NewReader("hello")); err != nil {
		t.Fatal(err)
	}
	s = storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m})
	if freed := collect(t, s, w.Packs[0]); freed.Packs != 0 {
		t.Fatalf("%+v", freed)
	}
	if st := s.Stats(); st.UnreadablePacks != 1 {
		t.Fatalf("%+v", st)
	}
	if freed := collect(t, s); freed.Packs != 1 || freed.Bytes != 100 {
		t.Fatalf("%+v", freed)
	}
	if keys := objects(t, m); len(keys) != 1 || keys[0] != "packs/README" {
		t.Fatalf("left: %v", keys)
	}
}

// Imports and removals at once, under the race detector: an image whose manifest
// is there can be read, always; when all are removed, nothing is left.
func TestCollectStress(t *testing.T) {
	m := storetest.NewMemOrigin()
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m})
	type image struct {
		chunks []store.Chunk
		seeds  []uint64
		packs  []store.Digest
		blob   store.Digest
	}
	var mu sync.Mutex
	images := map[int]image{}
	roots := func(context.Context) (store.Named, error) {
		mu.Lock()
		defer mu.Unlock()
		n := store.Named{Packs: map[store.Digest]struct{}{}, Blobs: map[store.Digest]struct{}{}}
		for _, im := range images {
			for _, p := range im.packs {
				n.Packs[p] = struct{}{}
			}
			n.Blobs[im.blob] = struct{}{}
		}
		return n, nil
	}
	collect := func() {
		if _, err := s.Collect(t.Context(), store.CollectOptions{Roots: roots}); err != nil {
			t.Error(err)
		}
	}
	importImage := func(id int, r *rand.Rand) error {
		defer s.Hold()()
		b := s.Begin(t.Context())
		defer b.Abort()
		im := image{}
		for range 10 {
			seed := r.Uint64N(25) // much in common
			c, _, err := b.Add(storetest.Data(seed, 2000))
			if err != nil {
				return err
			}
			im.chunks, im.seeds = append(im.chunks, c), append(im.seeds, seed)
		}
		w, err := b.Commit(t.Context())
		if err != nil {
			return err
		}
		im.packs = w.Packs
		if im.blob, err = s.PutBlob(t.Context(), fmt.Appendf(nil, "blob %d", r.IntN(3))); err != nil {
			return err
		}
		mu.Lock()
		images[id] = im
		mu.Unlock()
		return nil
	}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 7))
			for n := range 40 {
				id := worker*1000 + n
				if err := importImage(id, r); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				im := images[id]
				mu.Unlock()
				for _, c := range im.chunks {
					if _, err := read(t.Context(), s, c); err != nil {
						t.Errorf("image %d: %v", id, err)
						return
					}
				}
				if _, err := s.GetBlob(t.Context(), im.blob, 100); err != nil {
					t.Errorf("image %d: %v", id, err)
					return
				}
				if r.IntN(3) > 0 {
					mu.Lock()
					delete(images, id)
					mu.Unlock()
					collect()
				}
			}
		})
	}
	wg.Wait()
	for _, im := range images {
		for i, c := range im.chunks {
			wantRead(t, s, c, storetest.Data(im.seeds[i], 2000))
		}
	}
	clear(images)
	collect()
	if keys := objects(t, m); len(keys) != 0 {
		t.Fatalf("left: %v", keys)
	}
}

// The origin dies at every single operation of an import on top of another and of
// a removal. Whoever opens the store then finds the first image whole, and can
// finish the work.
func TestCrashAtEveryStep(t *testing.T) {
	died := errors.New("died")
	for step := 0; ; step++ {
		m := storetest.NewMemOrigin()
		f := &storetest.Faults{Origin: m}
		dir := t.TempDir()
		s := storetest.With(t, store.Options{Dir: dir, Origin: f})
		first, wFirst := storetest.Commit(t, s, storetest.Data(1, 5000), storetest.Data(2, 5000))
		doomed, _ := storetest.Commit(t, s, storetest.Data(3, 5000))
		blobFirst := blob(t, s, "first")
		blob(t, s, "doomed")

		var mu sync.Mutex
		left := step
		f.Before(func(context.Context, storetest.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if left == 0 {
				return died
			}
			left--
			return nil
		})
		second := [][]byte{storetest.Data(2, 5000), storetest.Data(4, 5000)}
		err := func() error {
			defer s.Hold()()
			b := s.Begin(t.Context())
			for _, data := range second {
				if _, _, err := b.Add(data); err != nil {
					return err
				}
			}
			if _, err := b.Commit(t.Context()); err != nil {
				return err
			}
			_, err := s.PutBlob(t.Context(), []byte("second"))
			return err
		}()
		if err == nil {
			_, err = s.Collect(t.Context(), names(wFirst.Packs[0], blobFirst))
		}
		if err != nil && !errors.Is(err, died) {
			t.Fatal(err)
		}
		s.Close()

		for _, where := range []string{dir, t.TempDir()} {
			s := storetest.With(t, store.Options{Dir: where, Origin: m})
			wantEmpty(t, where)
			for i, c := range first {
				wantRead(t, s, c, storetest.Data(uint64(i+1), 5000))
			}
			if _, err := s.GetBlob(t.Context(), blobFirst, 100); err != nil {
				t.Fatal(err)
			}
			if s.Has(doomed[0].Digest) {
				wantRead(t, s, doomed[0], storetest.Data(3, 5000))
			}
			chunks, _ := storetest.Commit(t, s, second...)
			for i, c := range chunks {
				wantRead(t, s, c, second[i])
			}
			s.Close()
		}
		s = storetest.With(t, store.Options{Dir: dir, Origin: m})
		if _, err := s.Collect(t.Context(), names(wFirst.Packs[0], blobFirst)); err != nil {
			t.Fatal(err)
		}
		if keys := objects(t, m); len(keys) != 2 {
			t.Fatalf("left: %v", keys)
		}
		if err == nil {
			if step < 8 {
				t.Fatalf("only %d operations", step)
			}
			return
		}
	}
}
