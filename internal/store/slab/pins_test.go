package slab_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// pieces are the chunks of an image: all pieces, one of them twice, and a hole.
func pieces() []store.Chunk {
	var chunks []store.Chunk
	for i := range sizes {
		c, _ := piece(i)
		chunks = append(chunks, c)
	}
	return append(chunks, store.Chunk{Size: 4096}, chunks[0])
}

func mustPlace(t testing.TB, s *slab.Slab, owner string) slab.Placement {
	t.Helper()
	p, err := s.Place(owner, pieces())
	require.NoError(t, err)
	return p
}

// wantPlaced fails unless f has all pieces where p says.
func wantPlaced(t testing.TB, f io.ReaderAt, p slab.Placement) {
	t.Helper()
	require.Len(t, p.Blocks, len(sizes)+2)
	require.EqualValues(t, slab.Hole, p.Blocks[len(sizes)])
	require.Equal(t, p.Blocks[0], p.Blocks[len(sizes)+1])
	for i, n := range sizes {
		got := make([]byte, n)
		_, err := f.ReadAt(got, int64(p.Blocks[i])*4096)
		require.NoError(t, err)
		_, want := piece(i)
		require.True(t, bytes.Equal(want, got), "piece %d at block %d", i, p.Blocks[i])
	}
}

func openFile(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// others writes chunks that are no pieces.
func others(t testing.TB, s *slab.Slab, n int) {
	t.Helper()
	for i := range n {
		c, data := storetest.Piece(uint64(1000+i), store.ChunkSize)
		require.NoError(t, s.Write(c, data))
	}
}

func TestPlace(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	p := mustPlace(t, s, "default/image.1")
	require.Equal(t, filepath.Join(dir, "slab"), p.File)
	wantPlaced(t, openFile(t, p.File), p)
	require.Equal(t, []string{"default/image.1"}, s.Owners())
	require.Equal(t, pieces()[:len(sizes)], s.Fixed("default/image.1"))
	require.Equal(t, p, mustPlace(t, s, "other"))
	require.EqualValues(t, usedBytes, s.Stats().Pinned)

	// Whatever the process does after: what Place said is on the disk.
	killed := open(t, copyOf(t, dir), 0)
	require.Equal(t, []string{"default/image.1", "other"}, killed.Owners())
	again := mustPlace(t, killed, "other")
	require.Equal(t, p.Blocks, again.Blocks)

	s.Unpin("default/image.1")
	require.Equal(t, []string{"other"}, s.Owners())
	s.Close()
	s = open(t, dir, 0)
	require.Equal(t, []string{"other"}, s.Owners())
	s.Unpin("other")
	s.Unpin("other")
	require.Empty(t, s.Owners())
	require.Zero(t, s.Stats().Pinned)
	require.Empty(t, list(t, filepath.Join(dir, "pins")))
}

func list(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestPlaceMissing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	absent, _ := storetest.Piece(77, 9000)
	_, err := s.Place("a", append(pieces(), absent, absent))
	var missing *slab.MissingError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, slab.MissingError{Missing: 1, Total: 6, Bytes: 9000}, *missing)
	require.True(t, fault.Is(err, fault.NotFound))
	require.Empty(t, s.Owners())
	require.Zero(t, s.Stats().Pinned)
	require.Empty(t, list(t, filepath.Join(dir, "pins")))
	for _, bad := range []string{"", string(make([]byte, 100))} {
		_, err = s.Place(bad, pieces())
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
}

// After an orderly end nothing is read again; after another everything is, once.
func TestPlaceVerifies(t *testing.T) {
	for name, c := range map[string]struct {
		killed bool
		want   int // missing
	}{"closed": {false, 0}, "killed": {true, 1}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, 0)
			fill(t, s)
			require.NoError(t, s.Flush())
			if c.killed {
				dir = copyOf(t, dir)
			} else {
				s.Close()
			}
			_, err := openFile(t, filepath.Join(dir, "slab")).WriteAt([]byte("rot"), 10*4096) // in piece 3
			require.NoError(t, err)
			s = open(t, dir, 0)
			_, err = s.Place("a", pieces())
			if !c.killed {
				require.NoError(t, err) // only a scrub finds it
				return
			}
			var missing *slab.MissingError
			require.ErrorAs(t, err, &missing)
			require.Equal(t, slab.MissingError{Missing: 1, Total: 5, Bytes: store.ChunkSize}, *missing)
			fill(t, s)
			wantPlaced(t, openFile(t, filepath.Join(dir, "slab")), mustPlace(t, s, "a"))
		})
	}
}

// The places of pins are nobody else's, whatever has become of the index.
func TestPinsOutliveTheIndex(t *testing.T) {
	index := func(dir string) string { return filepath.Join(dir, "slab.idx") }
	for name, damage := range map[string]func(t *testing.T, dir string){
		"lost":  func(t *testing.T, dir string) { require.NoError(t, os.Remove(index(dir))) },
		"torn":  func(t *testing.T, dir string) { require.NoError(t, os.Truncate(index(dir), 100)) },
		"empty": func(t *testing.T, dir string) { require.NoError(t, os.Truncate(index(dir), 0)) },
		"another's": func(t *testing.T, dir string) {
			other := t.TempDir()
			s := open(t, other, 0)
			others(t, s, 10)
			s.Close()
			b, err := os.ReadFile(index(other))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(index(dir), b, 0o600))
		},
		"says otherwise": func(t *testing.T, dir string) {
			pins := t.TempDir()
			require.NoError(t, os.Rename(filepath.Join(dir, "pins"), filepath.Join(pins, "pins")))
			require.NoError(t, os.Remove(index(dir)))
			s := open(t, dir, 0)
			others(t, s, 3)
			fill(t, s) // at other places
			s.Close()
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "pins")))
			require.NoError(t, os.Rename(filepath.Join(pins, "pins"), filepath.Join(dir, "pins")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, 0)
			fill(t, s)
			p := mustPlace(t, s, "a")
			s.Close()
			file := filepath.Join(dir, "slab")
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			damage(t, dir)

			s = open(t, dir, 0)
			require.Equal(t, []string{"a"}, s.Owners())
			others(t, s, 5)
			if name != "says otherwise" {
				require.Equal(t, p.Blocks, mustPlace(t, s, "b").Blocks)
				wantPlaced(t, openFile(t, file), p)
				return
			}
			// Their bytes were overwritten while the pins were away; written again
			// they are in their old places.
			_, err = s.Place("b", pieces())
			require.True(t, fault.Is(err, fault.NotFound), "%v", err)
			fill(t, s)
			require.Equal(t, p.Blocks, mustPlace(t, s, "b").Blocks)
			wantPlaced(t, openFile(t, file), p)
			require.Len(t, content, usedBytes+4096)
		})
	}
}

// A slab that begins anew is a new file: mounts read on from the old one.
func TestBeginsAnewBesideMounts(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		logged string
	}{
		"header": {func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "slab"), 9) }, ""},
		"gone":   {func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "slab"))) }, ""},
		"cut":    {func(t *testing.T, dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, "slab"), 31)) }, ""},
		"pins":   {func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "pins", "a"), 50) }, ""},
		"pins contradict": {func(t *testing.T, dir string) {
			// Of the same slab, as if it had been copied and gone on.
			other := copyOf(t, dir)
			s := open(t, other, 0)
			s.Unpin("a")
			_, err := s.Evict(t.Context(), 1<<40)
			require.NoError(t, err)
			others(t, s, 1)
			c, _ := storetest.Piece(1000, store.ChunkSize)
			_, err = s.Place("b", []store.Chunk{c})
			require.NoError(t, err)
			b, err := os.ReadFile(filepath.Join(other, "pins", "b"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "pins", "b"), b, 0o600))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, 0)
			fill(t, s)
			p := mustPlace(t, s, "a")
			mount := openFile(t, p.File)
			s.Close()
			c.damage(t, dir)

			s = open(t, dir, 0)
			require.Contains(t, s.Owners(), "a")
			wantPresent(t, s)
			others(t, s, 5)
			if name != "cut" {
				wantPlaced(t, mount, p)
			}
			fill(t, s)
			before, err := mount.Stat()
			require.NoError(t, err)
			now, err := os.Stat(p.File)
			require.NoError(t, err)
			require.False(t, os.SameFile(before, now))

			// The next start of the image uses the new one, and so does the next server.
			wantPlaced(t, openFile(t, p.File), mustPlace(t, s, "a"))
			s.Close()
			s = open(t, dir, 0)
			wantPresent(t, s, 0, 1, 2, 3, 4)
			wantPlaced(t, openFile(t, p.File), mustPlace(t, s, "a"))
			now2, err := os.Stat(p.File)
			require.NoError(t, err)
			require.True(t, os.SameFile(now, now2))
		})
	}
}

func flip(t testing.TB, path string, at int64) {
	t.Helper()
	f := openFile(t, path)
	b := make([]byte, 1)
	_, err := f.ReadAt(b, at)
	require.NoError(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
}

// What rots under a native mount stays in its place, and is repaired there.
func TestDamagedUnderAMount(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	p := mustPlace(t, s, "a")
	s.Close()
	mount := openFile(t, p.File)
	flip(t, p.File, int64(p.Blocks[3])*4096+70_000)

	s = open(t, dir, 0)
	wantPresent(t, s, 0, 1, 2, 4)
	c, data := piece(3)
	require.False(t, s.Has(c.Digest))
	require.EqualValues(t, 1, s.Stats().Drops)
	_, err := s.Place("b", pieces())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	others(t, s, 5)

	bad := bytes.Clone(data)
	bad[5]++
	require.True(t, fault.Is(s.Repair(c, bad), fault.Corrupt))
	require.NoError(t, s.Repair(c, data))
	wantPlaced(t, mount, p)
	wantPresent(t, s, 0, 1, 2, 3, 4)
	wantPlaced(t, mount, mustPlace(t, s, "b"))

	// Damaged again, and unmounted: then it is dropped.
	flip(t, p.File, int64(p.Blocks[3])*4096+70_000)
	s.Close()
	s = open(t, dir, 0)
	wantPresent(t, s, 0, 1, 2, 4)
	s.Unpin("a")
	require.False(t, s.Has(c.Digest))
	s.Unpin("b")
	require.NoError(t, s.Repair(c, data))
	wantPresent(t, s, 0, 1, 2, 3, 4)
	require.NotEqual(t, p.Blocks[3], mustPlace(t, s, "c").Blocks[3], "a bad place was used again")
}
