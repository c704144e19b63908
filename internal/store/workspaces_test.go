package store_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/storetest"
)

// everything is all bytes and keys of an origin.
func everything(t *testing.T, m *storetest.MemOrigin) map[string][]byte {
	all := map[string][]byte{}
	for _, key := range objects(t, m) {
		m.Change(key, func(b []byte) []byte { all[key] = bytes.Clone(b); return b })
	}
	return all
}

// Nothing that a workspace can ask depends on what another has stored: not whether
// there is a chunk, not what an import adds, not what the shared cache has.
func TestWorkspacesCannotProbe(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		cache := storetest.NewMemCache()
		m := storetest.NewMemOrigin()
		w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Cache: cache, Sealed: sealed})
		a, b := storetest.Store(t, w, "a"), storetest.Store(t, w, "b")
		secret := storetest.Data(1, 50_000)
		chunks, _ := storetest.Commit(t, a, secret)
		blobOfA := blob(t, a, "metadata of a")
		wantRead(t, a, chunks[0], secret)
		wantRead(t, a, chunks[0], secret) // when it is in the cache
		if !cache.Has(chunks[0].Digest) {
			t.Fatal("it should be in the cache")
		}
		if _, err := a.PutRecord(t.Context(), "names", "web", []byte("x"), nil); err != nil {
			t.Fatal(err)
		}

		if b.Has(chunks[0].Digest) {
			t.Fatal("b is told that a has it")
		}
		got, err := read(t.Context(), b, chunks[0])
		wantClass(t, err, fault.Corrupt)
		if !bytes.Equal(got, make([]byte, len(got))) {
			t.Fatal("b has read a's chunk")
		}
		batch := b.Begin(t.Context())
		defer batch.Abort()
		wantClass(t, batch.Use(chunks[0]), fault.NotFound)
		if _, added, err := batch.Add(secret); err != nil || !added {
			t.Fatalf("b is told that a has it: %v", err)
		}
		if written, err := batch.Commit(t.Context()); err != nil || written.NewChunks != 1 || written.StoredBytes == 0 {
			t.Fatalf("%+v, %v", written, err)
		}
		_, err = b.GetBlob(t.Context(), blobOfA, 1000)
		wantClass(t, err, fault.NotFound)
		_, _, err = b.GetRecord(t.Context(), "names", "web")
		wantClass(t, err, fault.NotFound)
		if l := records(t, b, "names"); len(l) != 0 {
			t.Fatalf("%q", l)
		}
		wantRead(t, b, chunks[0], secret) // now it is b's, too

		l, err := w.List(t.Context())
		slices.Sort(l)
		if err != nil || !slices.Equal(l, []string{"a", "b"}) {
			t.Fatalf("%q, %v", l, err)
		}
	}
}

// The bucket in hand: no plaintext, no digest, no name in any object or key, and
// equal content of two workspaces has nothing in common.
func TestBucketTellsNothing(t *testing.T) {
	m := storetest.NewMemOrigin()
	w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Sealed: true, Shared: true})
	text := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog\n"), 100)
	noise := storetest.Data(9, 3000) // stored as it is: it does not compress well
	var digests []store.Digest
	for _, name := range []string{"a", "b"} {
		s := storetest.Store(t, w, name)
		chunks, written := storetest.Commit(t, s, text, noise)
		for _, c := range chunks {
			digests = append(digests, c.Digest)
		}
		digests = append(digests, blob(t, s, "metadata: "+string(text)))
		for _, kind := range []string{"names", "manifests"} {
			if _, err := s.PutRecord(t.Context(), kind, "team/webserver", append(text, written.Packs[0][:]...), nil); err != nil {
				t.Fatal(err)
			}
		}
		collect(t, s, written.Packs...) // the blob is condemned
	}
	all := everything(t, m)
	for key, data := range all {
		if !strings.HasPrefix(key, "a/") && !strings.HasPrefix(key, "b/") {
			continue
		}
		both := append([]byte(key+"\n"), data...)
		for _, d := range digests {
			for _, form := range [][]byte{d[:8], []byte(hex.EncodeToString(d[:6]))} {
				if bytes.Contains(both, form) {
					t.Fatalf("the digest %v is in %s", d, key)
				}
			}
		}
		for _, form := range []string{"quick brown", "webserver", string(noise[:12])} {
			if bytes.Contains(both, []byte(form)) {
				t.Fatalf("%q is in %s", form, key)
			}
		}
		// A zstd frame would begin so.
		if bytes.Contains(data, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			t.Fatalf("a plain frame is in %s", key)
		}
	}
	seen := map[string]string{}
	for key, data := range all {
		if parts := strings.Split(key, "/"); len(parts) < 3 || parts[1] == "holds" || parts[1] == "condemned" {
			continue // the collector's, which knows packs and blobs by these names only
		}
		for i := 0; i+16 <= len(data); i += 16 {
			piece := string(data[i : i+16])
			different := map[byte]bool{} // a footer has small numbers and magic in places
			for _, c := range []byte(piece) {
				different[c] = true
			}
			if other, ok := seen[piece]; ok && other[:2] != key[:2] && len(different) > 10 {
				t.Fatalf("%s and %s have %x in common", key, other, piece)
			}
			seen[piece] = key
		}
	}
}

// With a's bytes in hand and b's key, nothing of them can be read, nor passed off as b's.
func TestBucketOfAnother(t *testing.T) {
	m := storetest.NewMemOrigin()
	w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Sealed: true})
	a := storetest.Store(t, w, "a")
	data := storetest.Data(1, 5000)
	chunks, written := storetest.Commit(t, a, data)
	blobOfA := blob(t, a, "metadata")
	if _, err := a.PutRecord(t.Context(), "names", "web", []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	for key, object := range everything(t, m) {
		if rest, ok := strings.CutPrefix(key, "a/"); ok {
			if err := m.Put(t.Context(), "b/"+rest, bytes.NewReader(object)); err != nil {
				t.Fatal(err)
			}
		}
	}
	b := storetest.Store(t, w, "b")
	if b.Has(chunks[0].Digest) {
		t.Fatal("b takes a's pack for its own")
	}
	if st := b.Stats(); st.UnreadablePacks != 1 {
		t.Fatalf("%+v", st)
	}
	_, err := b.Reader(written.Packs, chunks).ReadChunk(t.Context(), chunks[0], make([]byte, 5000))
	wantClass(t, err, fault.Corrupt)
	_, err = b.GetBlob(t.Context(), blobOfA, 1000)
	wantClass(t, err, fault.NotFound) // b's name for it is another
	if l := records(t, b, "names"); len(l) != 0 {
		t.Fatalf("%q", l)
	}
}

// A mark that nobody has written says so, and to remove it is the cure; it is not taken for
// another's key.
func TestDamagedMarks(t *testing.T) {
	for _, mark := range []string{"", "brisk workspace 1 sea", "brisk workspace 1 sealed 12345678x2345678\n", "brisk store 1\n"} {
		m := storetest.NewMemOrigin()
		if err := m.Put(t.Context(), "WORKSPACES/a", strings.NewReader(mark)); err != nil {
			t.Fatal(err)
		}
		ring, err := seal.OpenKeyring(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ring.Keys("a"); err != nil {
			t.Fatal(err)
		}
		a := storetest.Store(t, storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Sealed: true, Keyring: ring}), "a")
		_, err = a.PutRecord(t.Context(), "names", "web", nil, nil)
		wantClass(t, err, fault.Corrupt)
		if hint := fault.HintOf(err); !strings.Contains(hint, "remove the object") {
			t.Fatal(err, hint)
		}
		if err := m.Delete(t.Context(), "WORKSPACES/a"); err != nil {
			t.Fatal(err)
		}
		if _, err := a.PutRecord(t.Context(), "names", "web", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"", "1.2.3\n", "brisk s"} {
		m := storetest.NewMemOrigin()
		if err := m.Put(t.Context(), "VERSION", strings.NewReader(version)); err != nil {
			t.Fatal(err)
		}
		err := store.CheckVersion(t.Context(), m)
		wantClass(t, err, fault.Machine)
		if !strings.Contains(err.Error(), "none of Brisk's") {
			t.Fatal(err)
		}
	}
}

// Objects of one workspace that change places are noticed: nothing is read as what
// it is not.
func TestBucketIsRearranged(t *testing.T) {
	m := storetest.NewMemOrigin()
	w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Sealed: true})
	s := storetest.Store(t, w, "a")
	one, w1 := storetest.Commit(t, s, storetest.Data(1, 5000))
	two, w2 := storetest.Commit(t, s, storetest.Data(2, 5000))
	blob1, blob2 := blob(t, s, "one"), blob(t, s, "two")
	swap := func(x, y string) {
		all := everything(t, m)
		m.Change(x, func([]byte) []byte { return all[y] })
		m.Change(y, func([]byte) []byte { return all[x] })
	}
	swap("a/"+packKey(w1.Packs[0]), "a/"+packKey(w2.Packs[0]))
	swap("a/"+blobKey(s.BlobName(blob1)), "a/"+blobKey(s.BlobName(blob2)))
	_, err := read(t.Context(), s, one[0])
	wantClass(t, err, fault.Corrupt)
	_, err = read(t.Context(), s, two[0])
	wantClass(t, err, fault.Corrupt)
	for _, d := range []store.Digest{blob1, blob2} {
		_, err := s.GetBlob(t.Context(), d, 100)
		wantClass(t, err, fault.Corrupt)
	}
}

// The base: everybody reads it and deduplicates against it, and nobody writes to it
// but who opens it by its name.
func TestBase(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		m := storetest.NewMemOrigin()
		w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Cache: storetest.NewMemCache(), Sealed: sealed})
		a := storetest.Store(t, w, "a") // before there is anything shared
		shared := storetest.Store(t, w, store.SharedWorkspace)
		base := storetest.Data(1, 50_000)
		chunks, inBase := storetest.Commit(t, shared, base)
		b := storetest.Store(t, w, "b") // and after
		for _, s := range []*store.Store{a, b} {
			if !s.Has(chunks[0].Digest) {
				t.Fatal("it is shared")
			}
			own, written := storetest.Commit(t, s, base, storetest.Data(2, 5000))
			if written.NewChunks != 1 || len(written.Packs) != 2 || !slices.Contains(written.Packs, inBase.Packs[0]) {
				t.Fatalf("%+v", written)
			}
			wantRead(t, s, own[0], base)
			wantRead(t, s, own[1], storetest.Data(2, 5000))
		}
		// What is only a's is not in the base.
		own, _ := storetest.Commit(t, a, storetest.Data(3, 5000))
		if shared.Has(own[0].Digest) || b.Has(own[0].Digest) {
			t.Fatal("the base has what a has")
		}
	}
}

// A chunk of the base that somebody relies on is held there, too.
func TestBaseIsHeld(t *testing.T) {
	w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: storetest.NewMemOrigin()})
	shared, a := storetest.Store(t, w, store.SharedWorkspace), storetest.Store(t, w, "a")
	chunks, _ := storetest.Commit(t, shared, storetest.Data(1, 5000))
	b := a.Begin(t.Context())
	if _, added, err := b.Add(storetest.Data(1, 5000)); err != nil || added {
		t.Fatal(added, err)
	}
	if freed := collect(t, shared); freed.Packs != 0 {
		t.Fatalf("%+v", freed)
	}
	b.Abort()
	if freed := collect(t, shared); freed.Packs != 1 || shared.Has(chunks[0].Digest) {
		t.Fatalf("%+v", freed)
	}
}

// Two machines of one bucket: the second needs the key, says so before it has made
// one of its own, and then has everything.
func TestSecondMachine(t *testing.T) {
	m := storetest.NewMemOrigin()
	ring, err := seal.OpenKeyring(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	one := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Keyring: ring, Sealed: true})
	chunks, written := storetest.Commit(t, storetest.Store(t, one, "a"), storetest.Data(1, 5000))

	other, err := seal.OpenKeyring(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	two := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Keyring: other, Sealed: true})
	_, err = two.Store("a")
	wantClass(t, err, fault.Machine)
	if !strings.Contains(fault.HintOf(err), "brisk store key export a") {
		t.Fatal(fault.HintOf(err))
	}
	_, err = other.Find("a")
	wantClass(t, err, fault.NotFound)

	line, err := ring.Export("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Import(line); err != nil {
		t.Fatal(err)
	}
	s := storetest.Store(t, two, "a")
	dst := make([]byte, 5000)
	if _, err := s.Reader(written.Packs, chunks).ReadChunk(t.Context(), chunks[0], dst); err != nil || !bytes.Equal(dst, storetest.Data(1, 5000)) {
		t.Fatal(err)
	}
	if _, again := storetest.Commit(t, s, storetest.Data(1, 5000)); again.NewChunks != 0 {
		t.Fatalf("%+v", again)
	}

	// A machine with another key from before cannot write.
	third, err := seal.OpenKeyring(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := third.Keys("a"); err != nil {
		t.Fatal(err)
	}
	s = storetest.Store(t, storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Keyring: third, Sealed: true}), "a")
	_, err = s.PutRecord(t.Context(), "names", "x", nil, nil)
	wantClass(t, err, fault.Machine)
	_, err = s.PutBlob(t.Context(), []byte("x"))
	wantClass(t, err, fault.Machine)
	// Nor one that does not seal, or did not.
	s = storetest.Store(t, storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Keyring: ring}), "a")
	_, err = s.PutBlob(t.Context(), []byte("x"))
	wantClass(t, err, fault.Machine)
}

func TestOriginOfAnotherVersion(t *testing.T) {
	m := storetest.NewMemOrigin()
	if _, err := m.Swap(t.Context(), "VERSION", "", []byte("brisk store 9\n")); err != nil {
		t.Fatal(err)
	}
	ring, err := seal.OpenKeyring(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.OpenWorkspaces(t.Context(), store.WorkspacesOptions{Dir: t.TempDir(), Origin: m, Keyring: ring})
	wantClass(t, err, fault.Machine)
	if !strings.Contains(err.Error(), "brisk store 9") || fault.HintOf(err) == "" {
		t.Fatal(err)
	}
	if keys := objects(t, m); len(keys) != 1 {
		t.Fatalf("%q: nothing may be written there", keys)
	}
}

// An origin that does not answer is no reason not to start; and its version is looked
// at before anything is written, whenever that is.
func TestOriginIsAwayAtFirst(t *testing.T) {
	m := storetest.NewMemOrigin()
	f := &storetest.Faults{Origin: m}
	f.Before(func(context.Context, storetest.Op) error { return fault.New(fault.Unavailable, "no route") })
	ring, err := seal.OpenKeyring(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: f, Keyring: ring, Sealed: true})
	_, err = w.Store("a") // it might have a key that is elsewhere
	wantClass(t, err, fault.Unavailable)
	if _, err := ring.Keys("a"); err != nil {
		t.Fatal(err)
	}
	s := storetest.Store(t, w, "a")
	_, err = s.PutBlob(t.Context(), []byte("x"))
	wantClass(t, err, fault.Unavailable)
	f.Before(nil)
	if _, err := m.Swap(t.Context(), "VERSION", "", []byte("brisk store 9\n")); err != nil {
		t.Fatal(err)
	}
	_, err = s.PutBlob(t.Context(), []byte("x"))
	wantClass(t, err, fault.Machine)
}

// Epochs: what is stored in an earlier one is stored again, once, and read for ever.
func TestEpochs(t *testing.T) {
	m := storetest.NewMemOrigin()
	ring, err := seal.OpenKeyring(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	open := func() *store.Store {
		w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Keyring: ring, Sealed: true, Now: func() time.Time { return now }})
		return storetest.Store(t, w, "a")
	}
	data := storetest.Data(1, 5000)
	chunks, first := storetest.Commit(t, open(), data)
	now = now.Add(seal.EpochLength)
	s := open()
	wantRead(t, s, chunks[0], data)
	b := s.Begin(t.Context())
	if err := b.Use(chunks[0]); err != nil { // a parent's chunk is good in any epoch
		t.Fatal(err)
	}
	b.Abort()
	_, second := storetest.Commit(t, s, data)
	if second.NewChunks != 1 || second.Packs[0] == first.Packs[0] {
		t.Fatalf("%+v", second)
	}
	if _, again := storetest.Commit(t, s, data); again.NewChunks != 0 || again.Packs[0] != second.Packs[0] {
		t.Fatalf("%+v", again)
	}
	// The damage of one epoch's copy is not the other's.
	m.Change("a/"+packKey(second.Packs[0]), func(b []byte) []byte { b[20] ^= 1; return b })
	wantRead(t, open(), chunks[0], data)
}
