package storetest_test

import (
	"io"
	"strings"
	"testing"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMemOrigin(t *testing.T) {
	storetest.TestOrigin(t, func(*testing.T) store.Origin { return storetest.NewMemOrigin() })
}

func TestFaultsPassThrough(t *testing.T) {
	storetest.TestOrigin(t, func(*testing.T) store.Origin { return &storetest.Faults{Origin: storetest.NewMemOrigin()} })
}

func TestPrefix(t *testing.T) {
	storetest.TestOrigin(t, func(t *testing.T) store.Origin {
		whole := storetest.NewMemOrigin()
		for _, key := range []string{"other/top", "w", "w2/packs/ab/1"} {
			if err := whole.Put(t.Context(), key, strings.NewReader(key)); err != nil {
				t.Fatal(err)
			}
		}
		return store.Prefix(whole, "w/")
	})
}

func TestFaultsChangeAnswers(t *testing.T) {
	m := storetest.NewMemOrigin()
	if err := m.Put(t.Context(), "a", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	f := &storetest.Faults{Origin: m}
	f.After(func(op storetest.Op, data *[]byte) error { *data = (*data)[:3]; return nil })
	if b, _, err := f.Get(t.Context(), "a", 10); err != nil || string(b) != "con" {
		t.Fatalf("%q, %v", b, err)
	}
	if err := f.ReadAt(t.Context(), "a", make([]byte, 7), 0); !fault.Is(err, fault.Corrupt) {
		t.Fatal(err)
	}
	f.After(func(op storetest.Op, data *[]byte) error { return fault.New(fault.Unavailable, "cut") })
	r, err := f.Open(t.Context(), "a", 1)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); string(b) != "ontent" || !fault.Is(err, fault.Unavailable) {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestMemCache(t *testing.T) {
	storetest.TestCache(t, func(*testing.T) store.Cache { return storetest.NewMemCache() })
}
