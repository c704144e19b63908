package store_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/storetest"
)

func keysOf(t testing.TB, workspace string) *seal.Keys {
	t.Helper()
	ring, err := seal.OpenKeyring(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	k, err := ring.Keys(workspace)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// both runs a test on a plain store and on a sealed one.
func both(t *testing.T, test func(t *testing.T, o store.Options)) {
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprintf("sealed %v", sealed), func(t *testing.T) {
			test(t, store.Options{Dir: t.TempDir(), Keys: keysOf(t, "a"), Sealed: sealed})
		})
	}
}

func records(t *testing.T, s *store.Store, kind string) []string {
	t.Helper()
	var l []string
	if err := s.ListRecords(t.Context(), kind, func(name string) error { l = append(l, name); return nil }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(l)
	return l
}

func TestRecords(t *testing.T) {
	both(t, func(t *testing.T, o store.Options) {
		o.Origin = storetest.NewMemOrigin()
		s := storetest.With(t, o)
		_, _, err := s.GetRecord(t.Context(), "names", "web")
		wantClass(t, err, fault.NotFound)
		none := store.Version("")
		v1, err := s.PutRecord(t.Context(), "names", "web", []byte("one"), &none)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.PutRecord(t.Context(), "names", "web", []byte("two"), &none)
		wantClass(t, err, fault.Exists)
		v2, err := s.PutRecord(t.Context(), "names", "web", []byte("two"), &v1)
		if err != nil || v1 == v2 {
			t.Fatal(v1, v2, err)
		}
		_, err = s.PutRecord(t.Context(), "names", "web", []byte("three"), &v1)
		wantClass(t, err, fault.Exists)
		if b, v, err := s.GetRecord(t.Context(), "names", "web"); err != nil || string(b) != "two" || v != v2 {
			t.Fatalf("%q %v %v", b, v, err)
		}
		if _, err := s.PutRecord(t.Context(), "names", "web", nil, nil); err != nil {
			t.Fatal(err)
		}
		if b, _, err := s.GetRecord(t.Context(), "names", "web"); err != nil || len(b) != 0 {
			t.Fatalf("%q %v", b, err)
		}
		odd := []string{"registry.example:5000/team/web:v1", ".hidden", "a/.b", "%41", "~", "ä\x00\n", strings.Repeat("/.", 127), strings.Repeat("x", 255)}
		for _, name := range odd {
			if _, err := s.PutRecord(t.Context(), "names", name, []byte(name), nil); err != nil {
				t.Fatalf("%q: %v", name, err)
			}
			if b, _, err := s.GetRecord(t.Context(), "names", name); err != nil || string(b) != name {
				t.Fatalf("%q: %q %v", name, b, err)
			}
		}
		if _, err := s.PutRecord(t.Context(), "profiles", "other", nil, nil); err != nil {
			t.Fatal(err)
		}
		want := append([]string{"web"}, odd...)
		slices.Sort(want)
		if got := records(t, s, "names"); !slices.Equal(got, want) {
			t.Fatalf("%q", got)
		}
		for _, name := range want {
			for range 2 {
				if err := s.DeleteRecord(t.Context(), "names", name); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := records(t, s, "names"); len(got) != 0 {
			t.Fatalf("%q", got)
		}
		for _, bad := range [][2]string{{"", "x"}, {"A", "x"}, {"a/b", "x"}, {"names", ""}, {"names", strings.Repeat("x", 256)}} {
			_, err := s.PutRecord(t.Context(), bad[0], bad[1], nil, nil)
			wantClass(t, err, fault.Invalid)
		}
		_, err = s.PutRecord(t.Context(), "names", "x", make([]byte, store.MaxRecord+1), nil)
		wantClass(t, err, fault.Invalid)
	})
}

// Whatever lies in a record's place gives way to the record, too much of it too.
func TestRecordInThePlaceOfJunk(t *testing.T) {
	for _, size := range []int{0, 1000, store.MaxRecord + 10_000} {
		m := storetest.NewMemOrigin()
		s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m})
		if err := m.Put(t.Context(), "records/names/web", bytes.NewReader(make([]byte, size))); err != nil {
			t.Fatal(err)
		}
		if _, err := s.PutRecord(t.Context(), "names", "web", []byte("one"), nil); err != nil {
			t.Fatal(err)
		}
		if b, _, err := s.GetRecord(t.Context(), "names", "web"); err != nil || string(b) != "one" {
			t.Fatalf("%q %v", b, err)
		}
	}
}

// Of many who count up at once nobody's step is lost.
func TestRecordsTogether(t *testing.T) {
	both(t, func(t *testing.T, o store.Options) {
		o.Origin = storetest.NewMemOrigin()
		s := storetest.With(t, o)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					for {
						b, v, err := s.GetRecord(t.Context(), "counts", "n")
						if err != nil && !fault.Is(err, fault.NotFound) {
							t.Error(err)
							return
						}
						if _, err = s.PutRecord(t.Context(), "counts", "n", append(b, 'x'), &v); err == nil {
							break
						}
						if !fault.Is(err, fault.Exists) {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		if b, _, err := s.GetRecord(t.Context(), "counts", "n"); err != nil || len(b) != 80 {
			t.Fatal(len(b), err)
		}
	})
}

// What is not a record of the workspace's is none, whatever its place.
func TestForeignRecords(t *testing.T) {
	m := storetest.NewMemOrigin()
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m, Keys: keysOf(t, "a"), Sealed: true})
	for _, name := range []string{"one", "two"} {
		if _, err := s.PutRecord(t.Context(), "names", name, []byte(name), nil); err != nil {
			t.Fatal(err)
		}
	}
	keys := objects(t, m)
	get := func(key string) (b []byte) {
		m.Change(key, func(old []byte) []byte { b = old; return old })
		return b
	}
	one, two := get(keys[0]), get(keys[1])
	m.Change(keys[0], func([]byte) []byte { return two })
	m.Change(keys[1], func([]byte) []byte { return one })
	for _, name := range []string{"one", "two"} {
		_, _, err := s.GetRecord(t.Context(), "names", name)
		wantClass(t, err, fault.Corrupt)
		if !strings.Contains(err.Error(), `the key of workspace "a"`) {
			t.Fatal(err)
		}
	}
	// A plain one, and one with a name that nobody has sealed.
	if _, err := m.Swap(t.Context(), "records/names/plain", "", []byte("plain")); err != nil {
		t.Fatal(err)
	}
	if got := records(t, s, "names"); !slices.Equal(got, []string{"one", "two"}) {
		t.Fatalf("%q", got)
	}
	other := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m, Keys: keysOf(t, "b"), Sealed: true})
	if got := records(t, other, "names"); len(got) != 0 {
		t.Fatalf("%q", got)
	}
}

// Every name has a key of its own, that is one, and no name's file is another's
// directory.
func TestRecordNames(t *testing.T) {
	m := storetest.NewMemOrigin()
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m})
	rapid.Check(t, func(r *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.OneOf(
			rapid.StringMatching(`[a-z./%~]{1,5}`), rapid.StringN(1, 255, 255), rapid.StringMatching(`[a~./]{190,255}`),
		), 1, 5, rapid.ID[string]).Draw(r, "names")
		for _, name := range names {
			if _, err := s.PutRecord(context.Background(), "k", name, []byte(name), nil); err != nil {
				r.Fatalf("%q: %v", name, err)
			}
		}
		want := slices.Clone(names)
		slices.Sort(want)
		if got := records(t, s, "k"); !slices.Equal(got, want) {
			r.Fatalf("%q, want %q", got, want)
		}
		all := objects(t, m)
		for _, a := range all {
			for _, b := range all {
				if strings.HasPrefix(b, a+"/") {
					r.Fatalf("%q is the directory of %q", a, b)
				}
			}
		}
		for _, name := range names {
			if err := s.DeleteRecord(context.Background(), "k", name); err != nil {
				r.Fatal(err)
			}
		}
	})
}
