package store_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func packKey(d store.Digest) string { return "packs/" + d.String()[:2] + "/" + d.String() }
func blobKey(d store.Digest) string { return "blobs/" + d.String()[:2] + "/" + d.String() }

// damages are ways in which a pack of three chunks goes bad. kept are the chunks
// that can still be read by a store that has it open, and after opening it anew.
var damages = []struct {
	name         string
	damage       func(b []byte) []byte
	kept, reopen []int
}{
	{"a byte of a frame", func(b []byte) []byte { b[20] ^= 1; return b }, []int{1, 2}, []int{1, 2}},
	{"a byte of the index", func(b []byte) []byte { b[len(b)-96-10] ^= 1; return b }, []int{0, 1, 2}, nil},
	{"a byte of the footer", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, []int{0, 1, 2}, nil},
	{"cut in the frames", func(b []byte) []byte { return b[:len(b)-96-3*48-100] }, []int{0, 1}, nil},
	{"cut in the footer", func(b []byte) []byte { return b[:len(b)-1] }, []int{0, 1, 2}, nil},
	{"empty", func(b []byte) []byte { return nil }, nil, nil},
	{"zeros", func(b []byte) []byte { return make([]byte, len(b)) }, nil, nil},
	{"deleted", nil, nil, nil},
}

// Damage of a pack, on both kinds of origin: right bytes or an error that says
// what to do; and importing again heals it, for ever.
func TestDamagedPack(t *testing.T) {
	pieces := [][]byte{storetest.Data(1, 100_000), storetest.Data(2, 50_000), storetest.Data(3, 20_000)}
	for _, kind := range []string{"memory", "directory"} {
		for _, d := range damages {
			for _, reopen := range []bool{false, true} {
				name := kind + "/" + d.name
				if reopen {
					name += "/reopened without local copy"
				}
				t.Run(name, func(t *testing.T) {
					var origin store.Origin
					var hurt func(pack store.Digest)
					if kind == "memory" {
						m := storetest.NewMemOrigin()
						origin = m
						hurt = func(p store.Digest) { m.Change(packKey(p), d.damage) }
					} else {
						root := t.TempDir()
						o, err := store.OpenDir(root)
						if err != nil {
							t.Fatal(err)
						}
						origin = o
						hurt = func(p store.Digest) {
							path := filepath.Join(root, packKey(p))
							b, err := os.ReadFile(path)
							if err != nil {
								t.Fatal(err)
							}
							if err := os.WriteFile(path, d.damage(b), 0o600); err != nil {
								t.Fatal(err)
							}
						}
					}
					dir := t.TempDir()
					s := storetest.With(t, store.Options{Dir: dir, Origin: origin})
					chunks, w := storetest.Commit(t, s, pieces...)
					if d.damage == nil {
						if err := origin.Delete(t.Context(), packKey(w.Packs[0])); err != nil {
							t.Fatal(err)
						}
					} else {
						hurt(w.Packs[0])
					}
					kept := d.kept
					if reopen {
						s.Close()
						s = storetest.With(t, store.Options{Dir: t.TempDir(), Origin: origin})
						kept = d.reopen
					}
					// A pack that is gone is named once, and then not known any more.
					wantDamage(t, s, chunks, pieces, kept, w.Packs[0], !reopen && d.damage != nil)

					// It is remembered, if only by the local copy.
					if !reopen && kind == "directory" {
						s.Close()
						s = storetest.With(t, store.Options{Dir: dir, Origin: origin})
					}
					_, again := storetest.Commit(t, s, pieces...)
					for i, c := range chunks {
						wantRead(t, s, c, pieces[i])
					}
					if again.Chunks != 3 || again.NewChunks < 3-len(kept) {
						t.Fatalf("%+v", again)
					}
					s.Close()
					s = storetest.With(t, store.Options{Dir: t.TempDir(), Origin: origin})
					for i, c := range chunks {
						if !s.Has(c.Digest) && !reopen {
							continue // its index was not damaged for the store that had it open
						}
						wantRead(t, s, c, pieces[i])
					}
				})
			}
		}
	}
}

// A pack in the place of another has an index that is right in itself: what was there counts
// as missing, and importing it again puts it there.
func TestPackInThePlaceOfAnother(t *testing.T) {
	for _, reopen := range []bool{false, true} {
		m := storetest.NewMemOrigin()
		dir := t.TempDir()
		s := storetest.With(t, store.Options{Dir: dir, Origin: m})
		one, two := [][]byte{storetest.Data(1, 100_000), storetest.Data(2, 50_000)}, [][]byte{storetest.Data(3, 70_000)}
		chunks, w1 := storetest.Commit(t, s, one...)
		others, w2 := storetest.Commit(t, s, two...)
		var other []byte
		m.Change(packKey(w2.Packs[0]), func(b []byte) []byte { other = bytes.Clone(b); return b })
		m.Change(packKey(w1.Packs[0]), func([]byte) []byte { return other })
		if reopen {
			s.Close()
			s = storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m})
		}
		if _, err := s.Check(t.Context(), store.CheckOptions{Full: true}); err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(t.Context(), chunks); err != nil {
			t.Fatal(err)
		}
		if _, again := storetest.Commit(t, s, one...); again.NewChunks != 2 {
			t.Fatalf("%+v", again)
		}
		s.Close()
		s = storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m})
		for i, c := range chunks {
			wantRead(t, s, c, one[i])
		}
		wantRead(t, s, others[0], two[0])
	}
}

// Damage that no read has met yet is known after Verify, whatever the cache has.
func TestVerify(t *testing.T) {
	pieces := [][]byte{storetest.Data(1, 100_000), storetest.Data(2, 50_000), storetest.Data(3, 20_000)}
	m := storetest.NewMemOrigin()
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m, Cache: storetest.NewMemCache()})
	chunks, w := storetest.Commit(t, s, pieces...)
	for i, c := range chunks {
		wantRead(t, s, c, pieces[i])
	}
	m.Change(packKey(w.Packs[0]), func(b []byte) []byte { b[20] ^= 1; b[len(b)-96-3*48-1] ^= 1; return b })
	for _, c := range chunks {
		if !s.Has(c.Digest) {
			t.Fatal("the damage is known without a read")
		}
	}
	if err := s.Verify(t.Context(), chunks); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true, false} {
		if s.Has(chunks[i].Digest) != want {
			t.Fatalf("chunk %d counts as stored: %v", i, !want)
		}
	}
	if _, again := storetest.Commit(t, s, pieces...); again.NewChunks != 2 {
		t.Fatalf("%+v", again)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantClass(t, s.Verify(ctx, chunks), fault.Cancelled)
	s.Close()
	wantClass(t, s.Verify(t.Context(), chunks), fault.Cancelled)
}

func wantDamage(t *testing.T, s *store.Store, chunks []store.Chunk, pieces [][]byte, kept []int, pack store.Digest, named bool) {
	t.Helper()
	good := map[int]bool{}
	for _, i := range kept {
		good[i] = true
	}
	for i, c := range chunks {
		if good[i] {
			wantRead(t, s, c, pieces[i])
			continue
		}
		_, err := read(t.Context(), s, c)
		wantClass(t, err, fault.Corrupt)
		if !strings.Contains(err.Error(), c.Digest.Short()) || fault.HintOf(err) != "Import or build the image again: that stores what is missing or damaged anew." {
			t.Fatalf("%v, hint %q", err, fault.HintOf(err))
		}
		if named && !strings.Contains(err.Error(), pack.String()) {
			t.Fatalf("%v does not name pack %v", err, pack)
		}
		if s.Has(c.Digest) {
			t.Fatalf("a damaged chunk counts as stored")
		}
		b := s.Begin(t.Context())
		wantClass(t, b.Use(c), fault.NotFound)
		b.Abort()
	}
}

// Of two copies, the good one serves when the other is damaged or deleted.
func TestSecondCopy(t *testing.T) {
	data := storetest.Data(1, 5000)
	for _, hurt := range []string{"damaged", "deleted", "unavailable"} {
		t.Run(hurt, func(t *testing.T) {
			m := storetest.NewMemOrigin()
			f := &storetest.Faults{Origin: m}
			s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: f})
			// Two batches at once both write it, with something else, so the packs differ.
			var packs []store.Digest
			var batches []*store.Batch
			var c store.Chunk
			for i := range 2 {
				b := s.Begin(t.Context())
				defer b.Abort()
				var err error
				if c, _, err = b.Add(data); err != nil {
					t.Fatal(err)
				}
				if _, _, err := b.Add(storetest.Data(uint64(10+i), 5000)); err != nil {
					t.Fatal(err)
				}
				batches = append(batches, b)
			}
			for _, b := range batches {
				w, err := b.Commit(t.Context())
				if err != nil || w.NewChunks != 2 || len(w.Packs) != 1 {
					t.Fatalf("%+v, %v", w, err)
				}
				packs = append(packs, w.Packs...)
			}
			switch hurt {
			case "damaged":
				m.Change(packKey(packs[0]), func(b []byte) []byte { b[20] ^= 1; return b })
			case "deleted":
				if err := m.Delete(t.Context(), packKey(packs[0])); err != nil {
					t.Fatal(err)
				}
			case "unavailable":
				f.Before(func(_ context.Context, op storetest.Op) error {
					if op.Key == packKey(packs[0]) {
						return fault.New(fault.Unavailable, "503")
					}
					return nil
				})
			}
			wantRead(t, s, c, data)
			if !s.Has(c.Digest) {
				t.Fatal("the second copy does not count")
			}
			f.Before(nil)
			// Deleting the pack of either leaves the chunk to the other.
			collect(t, s, packs[1])
			wantRead(t, s, c, data)
		})
	}
}

// A damaged place in the slab costs a read of the origin, no more.
func TestDamagedSlab(t *testing.T) {
	dir := t.TempDir()
	s, cache := storetest.Open(t, dir)
	data := storetest.Data(1, 100_000)
	chunks, _ := storetest.Commit(t, s, data)
	wantRead(t, s, chunks[0], data)
	s.Close()
	cache.Close()
	path := filepath.Join(dir, "cache", "slab")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[4096+50_000] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, cache = storetest.Open(t, dir)
	for _, want := range []store.Tier{store.FromOrigin, store.FromCache} {
		dst := make([]byte, 100_000)
		tier, err := s.ReadChunk(t.Context(), chunks[0], dst)
		if err != nil || tier != want || !bytes.Equal(dst, data) {
			t.Fatalf("tier %v, %v", tier, err)
		}
	}
	if st := cache.Stats(); st.Drops != 1 || st.Chunks != 1 {
		t.Fatalf("%+v", st)
	}
}

func TestDamagedBlob(t *testing.T) {
	data := storetest.Data(1, 100_000)
	for name, damage := range map[string]func([]byte) []byte{
		"a byte":       func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"the header":   func(b []byte) []byte { b[0] ^= 1; return b },
		"cut":          func(b []byte) []byte { return b[:len(b)-5] },
		"empty":        func([]byte) []byte { return nil },
		"far too long": func(b []byte) []byte { return append(b, make([]byte, 1<<20)...) },
	} {
		t.Run(name, func(t *testing.T) {
			m := storetest.NewMemOrigin()
			s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m})
			d, err := s.PutBlob(t.Context(), data)
			if err != nil {
				t.Fatal(err)
			}
			m.Change(blobKey(d), damage)
			_, err = s.GetBlob(t.Context(), d, 100_000)
			wantClass(t, err, fault.Corrupt)
			if !strings.Contains(err.Error(), d.String()) || fault.HintOf(err) == "" {
				t.Fatalf("%v, hint %q", err, fault.HintOf(err))
			}
			if _, err := s.PutBlob(t.Context(), data); err != nil {
				t.Fatal(err)
			}
			if got, err := s.GetBlob(t.Context(), d, 100_000); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("not healed: %v", err)
			}
		})
	}
}

func TestBlobs(t *testing.T) {
	s := storetest.New(t)
	for _, n := range []int{1, 1000, 3 << 20} {
		data := storetest.Data(7, n)
		d, err := s.PutBlob(t.Context(), data)
		if err != nil || d != store.Sum(data) {
			t.Fatal(d, err)
		}
		if got, err := s.GetBlob(t.Context(), d, int64(n)); err != nil || !bytes.Equal(got, data) {
			t.Fatal(err)
		}
		if n > 1 {
			_, err = s.GetBlob(t.Context(), d, int64(n)-1)
			wantClass(t, err, fault.Corrupt)
		}
	}
	_, err := s.GetBlob(t.Context(), store.Digest{1}, 10)
	wantClass(t, err, fault.NotFound)
	_, err = s.PutBlob(t.Context(), nil)
	wantClass(t, err, fault.Invalid)
}
