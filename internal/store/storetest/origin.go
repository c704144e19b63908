package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// TestOrigin is what every store.Origin has to pass. open gives an empty one.
func TestOrigin(t *testing.T, open func(t *testing.T) store.Origin) {
	tests := map[string]func(*testing.T, store.Origin){
		"PutAndRead":         originPutAndRead,
		"MissingIsNotFound":  originMissing,
		"ShortIsCorrupt":     originShort,
		"ExistingStays":      originExisting,
		"FailedPutIsNothing": originFailedPut,
		"Open":               originOpen,
		"Get":                originGet,
		"Swap":               originSwap,
		"OneSwapWins":        originOneSwapWins,
		"List":               originList,
		"Modified":           originModified,
		"Delete":             originDelete,
		"Keys":               originKeys,
		"Cancelled":          originCancelled,
		"ConcurrentPuts":     originConcurrent,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func put(t *testing.T, o store.Origin, key string, data []byte) {
	t.Helper()
	if err := o.Put(t.Context(), key, bytes.NewReader(data)); err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
}

func wantObject(t *testing.T, o store.Origin, key string, want []byte) {
	t.Helper()
	if size, err := o.Size(t.Context(), key); err != nil || size != int64(len(want)) {
		t.Fatalf("size of %s: %d, %v, want %d", key, size, err, len(want))
	}
	got := make([]byte, len(want))
	if err := o.ReadAt(t.Context(), key, got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %s: %v, equal: %v", key, err, bytes.Equal(got, want))
	}
}

func wantClass(t *testing.T, err error, class fault.Class) {
	t.Helper()
	if !fault.Is(err, class) {
		t.Fatalf("error %v of class %q, want %q", err, fault.ClassOf(err), class)
	}
}

func wantKeys(t *testing.T, o store.Origin, prefix string, want ...string) {
	t.Helper()
	var got []string
	err := o.List(t.Context(), prefix, func(o store.Object) error {
		got = append(got, o.Key)
		return nil
	})
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("list %q: %q, %v, want %q", prefix, got, err, want)
	}
}

func originPutAndRead(t *testing.T, o store.Origin) {
	big := Data(1, 3<<20+17)
	put(t, o, "packs/ab/big", big)
	put(t, o, "small", []byte("hello"))
	put(t, o, "empty", nil)
	wantObject(t, o, "packs/ab/big", big)
	wantObject(t, o, "small", []byte("hello"))
	wantObject(t, o, "empty", nil)
	p := make([]byte, 1000)
	if err := o.ReadAt(t.Context(), "packs/ab/big", p, 3<<20-990); err != nil || !bytes.Equal(p, big[3<<20-990:][:1000]) {
		t.Fatalf("read in the middle: %v", err)
	}
	if err := o.ReadAt(t.Context(), "packs/ab/big", p[:17], 3<<20); err != nil || !bytes.Equal(p[:17], big[3<<20:]) {
		t.Fatalf("read up to the end: %v", err)
	}
}

func originMissing(t *testing.T, o store.Origin) {
	put(t, o, "packs/ab/there", []byte("x"))
	for _, key := range []string{"packs/ab/not", "packs/cd/not", "packs/ab", "nothing"} {
		_, err := o.Size(t.Context(), key)
		wantClass(t, err, fault.NotFound)
	}
	for _, key := range []string{"packs/cd/not", "packs/ab", "packs/ab/there/below"} {
		wantClass(t, o.ReadAt(t.Context(), key, make([]byte, 1), 0), fault.NotFound)
		_, err := o.Open(t.Context(), key, 0)
		wantClass(t, err, fault.NotFound)
		_, _, err = o.Get(t.Context(), key, 10)
		wantClass(t, err, fault.NotFound)
	}
}

func originShort(t *testing.T, o store.Origin) {
	put(t, o, "key", []byte("hello"))
	for _, off := range []int64{0, 1, 5, 100} {
		err := o.ReadAt(t.Context(), "key", make([]byte, 6), off)
		wantClass(t, err, fault.Corrupt)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%v is not io.ErrUnexpectedEOF", err)
		}
	}
}

func originExisting(t *testing.T, o store.Origin) {
	put(t, o, "key", []byte("first"))
	put(t, o, "key", []byte("second, longer"))
	wantObject(t, o, "key", []byte("first"))
}

func originFailedPut(t *testing.T, o store.Origin) {
	broken := io.MultiReader(bytes.NewReader(Data(1, 2<<20)), iotest.ErrReader(fault.New(fault.Unavailable, "gone")))
	wantClass(t, o.Put(t.Context(), "packs/ab/key", broken), fault.Unavailable)
	wantKeys(t, o, "")
	_, err := o.Size(t.Context(), "packs/ab/key")
	wantClass(t, err, fault.NotFound)
	put(t, o, "packs/ab/key", []byte("whole"))
	wantObject(t, o, "packs/ab/key", []byte("whole"))
}

func originOpen(t *testing.T, o store.Origin) {
	data := Data(1, 2<<20+9)
	put(t, o, "packs/ab/1", data)
	put(t, o, "empty", nil)
	for _, off := range []int64{0, 1, 1 << 20, 2<<20 + 8} {
		r, err := o.Open(t.Context(), "packs/ab/1", off)
		if err != nil {
			t.Fatalf("open at %d: %v", off, err)
		}
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, data[off:]) {
			t.Fatalf("from %d: %d bytes, %v", off, len(got), err)
		}
	}
	r, err := o.Open(t.Context(), "empty", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || len(got) != 0 {
		t.Fatalf("%q, %v", got, err)
	}
	r.Close()
	for _, off := range []int64{-1, 2<<20 + 9, 2<<20 + 10} {
		_, err := o.Open(t.Context(), "packs/ab/1", off)
		wantClass(t, err, fault.Corrupt)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%v is not io.ErrUnexpectedEOF", err)
		}
	}
	// Closed before its end, and cancelled before its end.
	if r, err = o.Open(t.Context(), "packs/ab/1", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	if r, err = o.Open(ctx, "packs/ab/1", 0); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel()
	_, err = io.ReadAll(r)
	wantClass(t, err, fault.Cancelled)
}

func originGet(t *testing.T, o store.Origin) {
	put(t, o, "records/a", []byte("hello"))
	put(t, o, "empty", nil)
	for _, max := range []int64{5, 6, 1 << 20} {
		if got, v, err := o.Get(t.Context(), "records/a", max); err != nil || string(got) != "hello" || v == "" {
			t.Fatalf("%q, version %q, %v", got, v, err)
		}
	}
	if got, v, err := o.Get(t.Context(), "empty", 0); err != nil || len(got) != 0 || v == "" {
		t.Fatalf("%q, version %q, %v", got, v, err)
	}
	for _, max := range []int64{0, 4} {
		_, _, err := o.Get(t.Context(), "records/a", max)
		wantClass(t, err, fault.Corrupt)
	}
}

func swap(t *testing.T, o store.Origin, key string, old store.Version, data string) store.Version {
	t.Helper()
	v, err := o.Swap(t.Context(), key, old, []byte(data))
	if err != nil || v == "" {
		t.Fatalf("swap %s: version %q, %v", key, v, err)
	}
	got, now, err := o.Get(t.Context(), key, 1<<20)
	if err != nil || string(got) != data || now != v {
		t.Fatalf("after the swap %s is %q of version %q, not %q; %v", key, got, now, v, err)
	}
	return v
}

func originSwap(t *testing.T, o store.Origin) {
	lost := func(key string, old store.Version, still string) {
		t.Helper()
		_, err := o.Swap(t.Context(), key, old, []byte("lost"))
		wantClass(t, err, fault.Exists)
		if still != "" {
			wantObject(t, o, key, []byte(still))
			return
		}
		_, err = o.Size(t.Context(), key)
		wantClass(t, err, fault.NotFound)
	}
	v1 := swap(t, o, "w/records/names/a", "", "one")
	lost("w/records/names/a", "", "one")
	v2 := swap(t, o, "w/records/names/a", v1, "two, longer")
	if v1 == v2 {
		t.Fatalf("two contents have version %q", v1)
	}
	lost("w/records/names/a", v1, "two, longer")
	lost("w/records/names/a", "", "two, longer")
	lost("w/records/names/b", v2, "")
	v3 := swap(t, o, "w/records/names/a", v2, "")
	swap(t, o, "w/records/names/a", v3, "two, longer")
	// Put does not change it, and what was put can be exchanged.
	put(t, o, "w/records/names/a", []byte("put"))
	wantObject(t, o, "w/records/names/a", []byte("two, longer"))
	put(t, o, "w/records/names/c", []byte("put"))
	_, v, err := o.Get(t.Context(), "w/records/names/c", 10)
	if err != nil {
		t.Fatal(err)
	}
	v = swap(t, o, "w/records/names/c", v, "swapped")
	// Deleted is not there.
	if err := o.Delete(t.Context(), "w/records/names/c"); err != nil {
		t.Fatal(err)
	}
	lost("w/records/names/c", v, "")
	swap(t, o, "w/records/names/c", "", "again")
	wantKeys(t, o, "", "w/records/names/a", "w/records/names/c")
}

// Many count together in one object: none of what was acknowledged is lost.
func originOneSwapWins(t *testing.T, o store.Origin) {
	const workers, each = 8, 5
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for done := 0; done < each; {
				count, v, err := o.Get(t.Context(), "counter", 1<<10)
				if err != nil && !fault.Is(err, fault.NotFound) {
					t.Error(err)
					return
				}
				switch _, err := o.Swap(t.Context(), "counter", v, append(count, 'x')); {
				case err == nil:
					done++
				case !fault.Is(err, fault.Exists):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	wantObject(t, o, "counter", bytes.Repeat([]byte{'x'}, workers*each))
}

// The origin's clock goes on: what is put later is not older.
func originModified(t *testing.T, o store.Origin) {
	modified := func(key string) (at time.Time) {
		t.Helper()
		if err := o.List(t.Context(), key, func(o store.Object) error { at = o.Modified; return nil }); err != nil {
			t.Fatal(err)
		}
		if at.IsZero() {
			t.Fatalf("%s has no time", key)
		}
		return at
	}
	put(t, o, "a", []byte("1"))
	v := swap(t, o, "b", "", "2")
	a, b := modified("a"), modified("b")
	if b.Before(a) {
		t.Fatalf("b was put after a (%v) at %v", a, b)
	}
	swap(t, o, "b", v, "3")
	if again := modified("b"); again.Before(b) {
		t.Fatalf("b was put at %v and exchanged at %v", b, again)
	}
}

func originList(t *testing.T, o store.Origin) {
	keys := []string{"blobs/ab/1", "packs/ab/12", "packs/ab/13", "packs/cd/14", "packs2/x", "top"}
	for _, key := range keys {
		put(t, o, key, []byte(key))
	}
	wantKeys(t, o, "", keys...)
	wantKeys(t, o, "packs/", keys[1:4]...)
	wantKeys(t, o, "packs", keys[1:5]...)
	wantKeys(t, o, "packs/ab/1", keys[1:3]...)
	wantKeys(t, o, "packs/ab/12", keys[1])
	wantKeys(t, o, "nothing/")
	stop := errors.New("stop")
	calls := 0
	err := o.List(t.Context(), "packs/", func(o store.Object) error {
		if o.Size != int64(len(o.Key)) {
			t.Errorf("%s: size %d", o.Key, o.Size)
		}
		calls++
		return stop
	})
	if !errors.Is(err, stop) || calls != 1 {
		t.Fatalf("list went on: %v, %d calls", err, calls)
	}
}

func originDelete(t *testing.T, o store.Origin) {
	put(t, o, "packs/ab/1", []byte("one"))
	put(t, o, "packs/ab/2", []byte("two"))
	for range 2 {
		if err := o.Delete(t.Context(), "packs/ab/1"); err != nil {
			t.Fatal(err)
		}
	}
	wantKeys(t, o, "", "packs/ab/2")
	put(t, o, "packs/ab/1", []byte("another"))
	wantObject(t, o, "packs/ab/1", []byte("another"))
}

func originKeys(t *testing.T, o store.Origin) {
	for _, key := range []string{"", "/", "/etc/passwd", "a/", "a//b", "..", "../x", "a/../../x", ".", "a/./b", ".tmp/x", "a/.b",
		"a\\b", "a\x00b", "a\nb", "a b", "ä", strings.Repeat("x", 256), strings.Repeat("x/", 600) + "x"} {
		wantClass(t, o.Put(t.Context(), key, strings.NewReader("x")), fault.Invalid)
		wantClass(t, o.ReadAt(t.Context(), key, make([]byte, 1), 0), fault.Invalid)
		_, err := o.Size(t.Context(), key)
		wantClass(t, err, fault.Invalid)
		_, err = o.Open(t.Context(), key, 0)
		wantClass(t, err, fault.Invalid)
		_, _, err = o.Get(t.Context(), key, 1)
		wantClass(t, err, fault.Invalid)
		_, err = o.Swap(t.Context(), key, "", []byte("x"))
		wantClass(t, err, fault.Invalid)
		wantClass(t, o.Delete(t.Context(), key), fault.Invalid)
	}
	wantKeys(t, o, "")
}

func originCancelled(t *testing.T, o store.Origin) {
	put(t, o, "there", []byte("x"))
	ctx, cancel := context.WithCancel(t.Context())
	// Cancelled while it reads what to put.
	r := io.MultiReader(bytes.NewReader(Data(1, 1<<20)), readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }))
	wantClass(t, o.Put(ctx, "key", io.LimitReader(r, 8<<20)), fault.Cancelled)
	wantClass(t, o.Put(ctx, "key", strings.NewReader("x")), fault.Cancelled)
	wantClass(t, o.ReadAt(ctx, "there", make([]byte, 1), 0), fault.Cancelled)
	_, err := o.Size(ctx, "there")
	wantClass(t, err, fault.Cancelled)
	_, err = o.Open(ctx, "there", 0)
	wantClass(t, err, fault.Cancelled)
	_, _, err = o.Get(ctx, "there", 1)
	wantClass(t, err, fault.Cancelled)
	_, err = o.Swap(ctx, "key", "", []byte("x"))
	wantClass(t, err, fault.Cancelled)
	wantClass(t, o.List(ctx, "", func(store.Object) error { return nil }), fault.Cancelled)
	wantClass(t, o.Delete(ctx, "there"), fault.Cancelled)
	wantKeys(t, o, "", "there")
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func originConcurrent(t *testing.T, o store.Origin) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := o.Put(t.Context(), "packs/ab/same", bytes.NewReader(bytes.Repeat([]byte{byte(i)}, 100_000))); err != nil {
				t.Error(err)
			}
			// What is there now is whole, whoever won.
			got := make([]byte, 100_000)
			if err := o.ReadAt(t.Context(), "packs/ab/same", got, 0); err != nil || !bytes.Equal(got, bytes.Repeat(got[:1], 100_000)) {
				t.Errorf("read: %v", err)
			}
		})
	}
	wg.Wait()
	wantKeys(t, o, "", "packs/ab/same")
}
