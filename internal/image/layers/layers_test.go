package layers

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

func open(t *testing.T, limit int64) *Layers {
	l, err := Open(filepath.Join(t.TempDir(), "layers"), limit)
	require.NoError(t, err)
	return l
}

func finished(t *testing.T, l *Layers, entries ...*image.LayerEntry) *List {
	w, err := l.NewWriter()
	require.NoError(t, err)
	defer w.Close()
	for _, e := range entries {
		require.NoError(t, w.Add(e))
	}
	list, err := w.Finish()
	require.NoError(t, err)
	t.Cleanup(list.Close)
	return list
}

func all(t *testing.T, list *List) (out []*image.LayerEntry) {
	require.NoError(t, list.Each(func(e *image.LayerEntry) error { out = append(out, e); return nil }))
	return out
}

// kinds is an entry of every kind.
func kinds() []*image.LayerEntry {
	chunk := func(s string, size uint32) store.Chunk { return store.Chunk{Digest: store.Sum([]byte(s)), Size: size} }
	hole := store.Chunk{Size: store.ChunkSize}
	return []*image.LayerEntry{
		{Path: ".", Opaque: true, Node: &image.Node{Mode: unix.S_IFDIR | 0o1777, UID: 4_000_000_000, MtimeS: -1, MtimeNS: 999_999_999}},
		{Path: "a/b\xff", Node: &image.Node{Mode: unix.S_IFREG | 0o4755, GID: 7, Size: 5, Chunks: []store.Chunk{chunk("a", 5)},
			Xattrs: map[string]string{"security.capability": "\x00\x01", "user.x": ""}}},
		{Path: "empty", Node: &image.Node{Mode: unix.S_IFREG}},
		{Path: "hole", Node: &image.Node{Mode: unix.S_IFREG, Size: 2 * store.ChunkSize, Chunks: []store.Chunk{hole, hole}}},
		{Path: "mixed", Node: &image.Node{Mode: unix.S_IFREG, Size: 4*store.ChunkSize + 1, Chunks: []store.Chunk{
			hole, chunk("1", store.ChunkSize), chunk("2", store.ChunkSize), hole, chunk("3", 1)}}},
		{Path: "l", Node: &image.Node{Mode: unix.S_IFLNK | 0o777, Link: "../x"}},
		{Path: "null", Node: &image.Node{Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3}},
		{Path: "fifo", Node: &image.Node{Mode: unix.S_IFIFO | 0o600}},
		{Action: image.HardLink, Path: "h", Link: "a/b\xff"},
		{Action: image.Remove, Path: "gone"},
		{Action: image.Clear, Path: "."},
	}
}

func TestListsGiveBackWhatWasWritten(t *testing.T) {
	l := open(t, DefaultLimit)
	list := finished(t, l, kinds()...)
	require.Equal(t, kinds(), all(t, list), "before it is kept")
	require.NoError(t, l.Keep("default", ID{1}, list))
	require.Equal(t, kinds(), all(t, list), "and after, twice")

	other, err := l.Get("default", ID{1})
	require.NoError(t, err)
	defer other.Close()
	require.Equal(t, kinds(), all(t, other))

	for _, c := range []struct {
		workspace string
		id        ID
	}{{"other", ID{1}}, {"default", ID{2}}} {
		none, err := l.Get(c.workspace, c.id)
		require.NoError(t, err)
		require.Nil(t, none, "a layer is known to its workspace only")
	}
}

func TestDamagedListsAreForgotten(t *testing.T) {
	l := open(t, DefaultLimit)
	list := finished(t, l, kinds()...)
	require.NoError(t, l.Keep("default", ID{1}, list))
	path := l.path("default", ID{1})
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, bad := range map[string][]byte{
		"empty": nil, "cut": good[:len(good)-1], "longer": append(bytes.Clone(good), 0), "short": good[:20],
		"flipped": append(append(bytes.Clone(good[:30]), good[30]^1), good[31:]...),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, bad, 0o600))
			list, err := l.Get("default", ID{1})
			require.NoError(t, err)
			require.Nil(t, list)
			require.NoFileExists(t, path)
		})
	}
}

func TestListsThatWereNotUsedGoFirst(t *testing.T) {
	l := open(t, 1<<20)
	size := int64(0)
	for i := range 3 {
		list := finished(t, l, kinds()...)
		require.NoError(t, l.Keep("default", ID{byte(i)}, list))
		info, err := os.Stat(l.path("default", ID{byte(i)}))
		require.NoError(t, err)
		size = info.Size()
		old := time.Unix(1_000_000+int64(i), 0)
		require.NoError(t, os.Chtimes(l.path("default", ID{byte(i)}), old, old))
	}
	used, err := l.Get("default", ID{0})
	require.NoError(t, err)
	used.Close()
	l.limit = 3 * size
	require.NoError(t, l.Keep("default", ID{3}, finished(t, l, kinds()...)))
	require.FileExists(t, l.path("default", ID{0}))
	require.NoFileExists(t, l.path("default", ID{1}))
	require.FileExists(t, l.path("default", ID{2}))
	require.FileExists(t, l.path("default", ID{3}))
}

func TestWhatADeadProcessWroteIsRemoved(t *testing.T) {
	l := open(t, DefaultLimit)
	w, err := l.NewWriter()
	require.NoError(t, err)
	require.NoError(t, w.Add(kinds()[0]))
	name := w.file.Name()
	require.FileExists(t, name)
	_, err = Open(l.dir, DefaultLimit)
	require.NoError(t, err)
	require.NoFileExists(t, name)
	w.Close()
	left, err := os.ReadDir(l.dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestEntriesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &image.Node{
			Mode: unix.S_IFREG | rapid.Uint32Range(0, 0o7777).Draw(t, "mode"), UID: rapid.Uint32().Draw(t, "uid"), GID: rapid.Uint32().Draw(t, "gid"),
			MtimeS: rapid.Int64().Draw(t, "s"), MtimeNS: rapid.Uint32Range(0, 999_999_999).Draw(t, "ns"),
			Size: rapid.Int64Range(0, 20*store.ChunkSize).Draw(t, "size"),
		}
		for at := int64(0); at < n.Size; at += store.ChunkSize {
			c := store.Chunk{Size: uint32(min(n.Size-at, store.ChunkSize))}
			if rapid.Bool().Draw(t, "data") {
				c.Digest = store.Sum([]byte{byte(at >> 17)})
			}
			n.Chunks = append(n.Chunks, c)
		}
		want := &image.LayerEntry{Path: "x/" + rapid.StringMatching(`[a-z]{1,300}`).Draw(t, "name"), Node: n}
		got, err := readEntry(bufio.NewReader(bytes.NewReader(appendEntry(nil, want))))
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

func TestEntriesThatCannotBe(t *testing.T) {
	for name, b := range map[string][]byte{
		"kind":            {4, 1, 'a'},
		"flags":           {0x41, 1, 'a', 1, 'b'},
		"opaque link":     {0x81, 1, 'a', 1, 'b'},
		"absolute":        {2, 2, '/', 'a'},
		"upwards":         {2, 4, '.', '.', '/', 'a'},
		"not clean":       {2, 4, 'a', '/', '/', 'b'},
		"empty path":      {2, 0},
		"long string":     {2, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"no kind of file": append([]byte{0, 1, 'a'}, appendNode(nil, &image.Node{Mode: 0o644})...),
		"size":            append([]byte{0, 1, 'a', 0x80, 0x80, 2, 0, 0, 0, 0, 0}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f),
		"too many chunks": {0, 1, 'a', 0x80, 0x80, 2, 0, 0, 0, 0, 0, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readEntry(bufio.NewReader(bytes.NewReader(b)))
			require.True(t, fault.Is(err, fault.Corrupt), "%v", err)
		})
	}
}

func FuzzList(f *testing.F) {
	dir := f.TempDir()
	w, err := newWriter(dir)
	require.NoError(f, err)
	for _, e := range kinds() {
		require.NoError(f, w.Add(e))
	}
	list, err := w.Finish()
	require.NoError(f, err)
	b, err := os.ReadFile(list.file.Name())
	require.NoError(f, err)
	list.Close()
	f.Add(b[:len(b)-trailer])
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := decode(bytes.NewReader(b), func(e *image.LayerEntry) error {
			again, err := readEntry(bufio.NewReader(bytes.NewReader(appendEntry(nil, e))))
			require.NoError(t, err)
			require.Equal(t, e, again)
			return nil
		})
		if err != nil {
			require.True(t, fault.Is(err, fault.Corrupt), "%v", err)
			require.False(t, strings.Contains(err.Error(), "\n"))
		}
	})
}
