package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// shared is an origin with a clock of its own, that several machines use.
type shared struct {
	*storetest.MemOrigin
	offset atomic.Int64
}

func newShared() *shared {
	s := &shared{MemOrigin: storetest.NewMemOrigin()}
	s.Clock = func() time.Time { return time.Now().Add(time.Duration(s.offset.Load())) }
	return s
}

func (s *shared) later(d time.Duration) { s.offset.Add(int64(d)) }

func (s *shared) machine(t *testing.T) *store.Store {
	t.Helper()
	return storetest.With(t, store.Options{Dir: t.TempDir(), Origin: s, Shared: true})
}

// content lists packs and blobs.
func (s *shared) content(t *testing.T) (keys []string) {
	t.Helper()
	for _, k := range objects(t, s.MemOrigin) {
		if strings.HasPrefix(k, "packs/") || strings.HasPrefix(k, "blobs/") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func TestSharedOriginGivesTime(t *testing.T) {
	o := newShared()
	a, b := o.machine(t), o.machine(t)
	chunks, w := storetest.Commit(t, a, storetest.Data(1, 5000))
	meta := blob(t, a, "meta")

	got := collect(t, b)
	if got.Packs+got.Blobs != 0 || got.Waiting != 2 || got.WaitingBytes <= w.StoredBytes {
		t.Fatalf("%+v", got)
	}
	// Whoever needs it within the grace period has it reprieved, and nothing is stored twice.
	o.later(50 * time.Minute)
	hold := a.Claim()
	if _, again := storetest.Commit(t, a, storetest.Data(1, 5000)); again.NewChunks != 0 || again.Packs[0] != w.Packs[0] {
		t.Fatalf("%+v", again)
	}
	hold.Release()
	o.later(20 * time.Minute)
	if got := collect(t, b); got.Packs != 0 || got.Blobs != 1 || got.Waiting != 1 {
		t.Fatalf("%+v", got)
	}
	if _, err := a.GetBlob(t.Context(), meta, 10); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	o.later(2 * time.Hour)
	if got := collect(t, b); got.Packs != 1 || got.Waiting != 0 {
		t.Fatalf("%+v", got)
	}
	if left := o.content(t); len(left) != 0 {
		t.Fatalf("left: %v", left)
	}

	// The other machine still takes the pack for stored, but not to rely on it; and what was
	// deleted is not written again under its name.
	if !a.Has(chunks[0].Digest) {
		t.Fatal("a deletion elsewhere is known at once: this test shows nothing")
	}
	_, again := storetest.Commit(t, a, storetest.Data(1, 5000))
	if again.NewChunks != 1 || again.Packs[0] == w.Packs[0] {
		t.Fatalf("%+v", again)
	}
	if meta2 := blob(t, a, "meta"); meta2 != meta {
		t.Fatal("another digest")
	}
	left := o.content(t)
	if len(left) != 2 || !strings.HasSuffix(left[0], ".1") {
		t.Fatalf("%v", left)
	}
	for _, s := range []*store.Store{a, b, o.machine(t)} {
		wantRead(t, s, chunks[0], storetest.Data(1, 5000))
		if got, err := s.GetBlob(t.Context(), meta, 10); err != nil || string(got) != "meta" {
			t.Fatal(string(got), err)
		}
	}
	// What is named stays, whatever the time; the rest goes without a trace.
	for range 2 {
		o.later(100 * time.Hour)
		if got := collect(t, b, again.Packs[0], meta); got.Packs+got.Blobs+got.Waiting+got.Held != 0 {
			t.Fatalf("%+v", got)
		}
	}
	for range 4 {
		collect(t, b)
		o.later(100 * time.Hour)
	}
	left = objects(t, o.MemOrigin)
	slices.Sort(left)
	if !slices.Equal(left, []string{"clock", "collected"}) {
		t.Fatalf("left: %v", left)
	}
}

// A machine that slept for longer than its hold lives: it finishes if what it
// relied on is there, and fails without having written anything if not.
func TestPublishAfterSleep(t *testing.T) {
	for _, collected := range []bool{false, true} {
		t.Run(fmt.Sprint(collected), func(t *testing.T) {
			o := newShared()
			a, b := o.machine(t), o.machine(t)
			batch := a.Begin(t.Context())
			hold := batch.Hold()
			defer hold.Release()
			if _, _, err := batch.Add(storetest.Data(1, 5000)); err != nil {
				t.Fatal(err)
			}
			w, err := batch.Commit(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			meta := blob(t, a, "meta")
			if got := collect(t, b); got.Holds != 1 {
				t.Fatalf("%+v", got)
			}
			o.later(2 * time.Hour)
			o1 := names()
			if !collected {
				o1 = names(w.Packs[0], meta)
			}
			for range 2 { // the first breaks the hold
				if got, err := b.Collect(t.Context(), o1); err != nil || got.Holds != 0 {
					t.Fatal(got, err)
				}
			}
			wrote := 0
			err = hold.Publish(t.Context(), w.Packs, []store.Digest{meta}, func() error { wrote++; return nil }, func() error { wrote--; return nil })
			if collected {
				wantClass(t, err, fault.Unavailable)
			} else if err != nil || wrote != 1 {
				t.Fatal(wrote, err)
			}
			if collected && wrote != 0 {
				t.Fatal("something is written that names what is gone")
			}
		})
	}
}

// Whoever removes the last manifest gives those who read a whole grace period.
func TestReprieve(t *testing.T) {
	o := newShared()
	a, b := o.machine(t), o.machine(t)
	_, w := storetest.Commit(t, a, storetest.Data(1, 5000))
	collect(t, b) // condemned by a collector that had not seen the manifest
	o.later(2 * time.Hour)
	if err := a.Reprieve(t.Context(), w.Packs, []store.Digest{store.Sum([]byte("x"))}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := collect(t, b); got.Packs != 0 || got.Waiting != 1 {
			t.Fatalf("%+v", got)
		}
		o.later(30 * time.Minute)
	}
	o.later(30 * time.Minute)
	if got := collect(t, b); got.Packs != 1 {
		t.Fatalf("%+v", got)
	}
}

// Roots that cannot be read keep everything.
func TestUnreadableRootsKeepEverything(t *testing.T) {
	for name, s := range map[string]*store.Store{"alone": storetest.New(t), "shared": newShared().machine(t)} {
		_, w := storetest.Commit(t, s, storetest.Data(1, 5000))
		_, err := s.Collect(t.Context(), store.CollectOptions{Roots: func(context.Context) (store.Named, error) {
			return store.Named{}, fault.New(fault.Corrupt, "a manifest is damaged")
		}})
		wantClass(t, err, fault.Corrupt)
		if got := collect(t, s, w.Packs...); got.Packs != 0 || got.Held != 0 || got.Waiting != 0 {
			t.Fatalf("%s: %+v", name, got)
		}
	}
}

// An object of the ledger that this Brisk cannot read stops who would have to know what it says.
func TestForeignLedger(t *testing.T) {
	for _, key := range []string{"condemned/x", "holds/x"} {
		o := newShared()
		if err := o.Put(t.Context(), key, strings.NewReader(`{"format":"brisk condemned 2"}`)); err != nil {
			t.Fatal(err)
		}
		s := o.machine(t)
		_, err := s.Collect(t.Context(), names())
		wantClass(t, err, fault.Corrupt)
		if !strings.Contains(fault.HintOf(err), key) {
			t.Fatalf("%q does not name %s", fault.HintOf(err), key)
		}
	}
}

// What a machine reads stays, although nothing names it any more.
func TestSharedUse(t *testing.T) {
	o := newShared()
	a, b := o.machine(t), o.machine(t)
	chunks, w := storetest.Commit(t, a, storetest.Data(1, 5000))
	meta := blob(t, a, "meta")
	release := a.Use(w.Packs, []store.Digest{meta})
	eventually(t, func() bool { return len(o.leases(t)) == 1 })
	if got := collect(t, b); got.Held != 2 || got.Waiting != 0 {
		t.Fatalf("%+v", got)
	}
	again := a.Use(w.Packs, nil)
	release()
	release()
	wantRead(t, a, chunks[0], storetest.Data(1, 5000))
	again()
	eventually(t, func() bool { return len(o.leases(t)) == 0 })
	if got := collect(t, b); got.Held != 0 || got.Waiting != 2 {
		t.Fatalf("%+v", got)
	}
}

// leases lists those of uses.
func (s *shared) leases(t *testing.T) (l []string) {
	t.Helper()
	for _, k := range objects(t, s.MemOrigin) {
		if strings.HasPrefix(k, "holds/") {
			if b, _, err := s.Get(t.Context(), k, 1<<20); err == nil && strings.Contains(string(b), `"uses"`) {
				l = append(l, k)
			}
		}
	}
	return l
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never happens")
		}
	}
}
