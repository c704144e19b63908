// Package storetest has the conformance suites of store's contracts (TestOrigin,
// TestCache), in-memory implementations to be used as fakes (MemOrigin,
// MemCache), an origin with faults on demand (Faults), and whole stores for the
// tests of packages above (New, Open, Workspaces).
package storetest

import (
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/slab"
)

// New gives a store over a MemOrigin and a MemCache, closed when the test ends.
func New(t testing.TB) *store.Store {
	t.Helper()
	return With(t, store.Options{Dir: t.TempDir(), Origin: NewMemOrigin(), Cache: NewMemCache()})
}

// Open gives a store over a directory origin and a slab, all below dir, closed
// when the test ends. A test that wants to open the same again closes the store and
// the slab first.
func Open(t testing.TB, dir string) (*store.Store, *slab.Slab) {
	t.Helper()
	origin, err := store.OpenDir(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	cache, err := slab.Open(slab.Options{Dir: filepath.Join(dir, "cache"), Log: Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	return With(t, store.Options{Dir: filepath.Join(dir, "cache"), Origin: origin, Cache: cache}), cache
}

// With opens a store, closed when the test ends.
func With(t testing.TB, o store.Options) *store.Store {
	t.Helper()
	if o.Log == nil {
		o.Log = Log(t)
	}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Workspaces opens the stores of an origin, closed when the test ends. Without a
// keyring there is one in o.Dir, without a directory a new one.
func Workspaces(t testing.TB, o store.WorkspacesOptions) *store.Workspaces {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Keyring == nil {
		ring, err := seal.OpenKeyring(filepath.Join(o.Dir, "keys"))
		if err != nil {
			t.Fatal(err)
		}
		o.Keyring = ring
	}
	if o.Log == nil {
		o.Log = Log(t)
	}
	w, err := store.OpenWorkspaces(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// Store gives the store of one of them.
func Store(t testing.TB, w *store.Workspaces, workspace string) *store.Store {
	t.Helper()
	s, err := w.Store(workspace)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Log writes to the test's log.
func Log(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// Data makes n bytes that depend on the seed only and compress to about half.
func Data(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := 0; i < n; i += 2 {
		b[i] = byte(r.Uint32())
	}
	if n > 0 {
		b[0] |= 1 // not all zeros, however short
	}
	return b
}

// Commit stores pieces of data in a batch, and gives their chunks.
func Commit(t testing.TB, s *store.Store, data ...[]byte) ([]store.Chunk, store.Written) {
	t.Helper()
	b := s.Begin(t.Context())
	defer b.Abort()
	chunks := make([]store.Chunk, len(data))
	for i, d := range data {
		c, _, err := b.Add(d)
		if err != nil {
			t.Fatal(err)
		}
		chunks[i] = c
	}
	w, err := b.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return chunks, w
}
