package fidelity

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// TestDirectories makes random trees on the filesystem of temporary files,
// imports each, mounts it, and compares.
func TestDirectories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		src := filepath.Join(base, fmt.Sprint(n))
		grow(rt, src)
		want, err := survey(src)
		require.NoError(rt, err)
		img := w.load(src)
		for _, mount := range []func(*image.Image) string{w.lazily, w.natively} {
			got, err := survey(mount(img))
			require.NoError(rt, err)
			require.Empty(rt, differences(want, got))
		}
		require.NoError(rt, os.RemoveAll(src))
	})
}

// grow makes a random tree.
func grow(rt *rapid.T, root string) {
	name := rapid.OneOf(
		rapid.StringMatching(`[a-z]{1,3}`),
		rapid.StringMatching(`[A-Za-z0-9 .,_\\-]{1,40}`),
		rapid.Custom(func(rt *rapid.T) string {
			b := rapid.SliceOfN(rapid.ByteRange(1, 255), 1, 255).Draw(rt, "bytes")
			return strings.ReplaceAll(string(b), "/", "|")
		})).Filter(func(s string) bool { return s != "." && s != ".." && !strings.HasPrefix(s, "-") })
	size := rapid.OneOf(rapid.IntRange(0, 10), rapid.SampledFrom([]int{4095, 4096, 4097, store.ChunkSize - 1, store.ChunkSize, store.ChunkSize + 1, 3*store.ChunkSize + 5}))
	id := rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, 1<<32-2))

	require.NoError(rt, os.Mkdir(root, 0o755))
	dirs, files := []string{root}, []string{}
	attributes := func(path string, follow bool) {
		require.NoError(rt, os.Lchown(path, id.Draw(rt, "uid"), id.Draw(rt, "gid")))
		if follow {
			require.NoError(rt, unix.Chmod(path, uint32(rapid.IntRange(0, 0o7777).Draw(rt, "mode"))))
			for range rapid.IntRange(0, 2).Draw(rt, "xattrs") {
				key := rapid.SampledFrom([]string{"user.", "trusted."}).Draw(rt, "namespace") + rapid.StringMatching(`[a-z.]{1,20}`).Draw(rt, "xattr")
				require.NoError(rt, unix.Lsetxattr(path, key, rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(rt, "value"), 0))
			}
		}
	}
	for range rapid.IntRange(0, 25).Draw(rt, "files") {
		path := filepath.Join(rapid.SampledFrom(dirs).Draw(rt, "dir"), name.Draw(rt, "name"))
		if _, err := os.Lstat(path); err == nil || len(path) > 3000 {
			continue
		}
		switch kind := rapid.IntRange(0, 9).Draw(rt, "kind"); {
		case kind < 2:
			require.NoError(rt, os.Mkdir(path, 0o755))
			attributes(path, true)
			dirs = append(dirs, path)
		case kind < 6:
			n := size.Draw(rt, "size")
			require.NoError(rt, os.WriteFile(path, []byte(noise(uint64(rapid.IntRange(0, 20).Draw(rt, "content")), n)), 0o644))
			if rapid.IntRange(0, 3).Draw(rt, "hole") == 0 {
				require.NoError(rt, os.Truncate(path, int64(n+rapid.IntRange(0, 1<<20).Draw(rt, "longer"))))
			}
			attributes(path, true)
			files = append(files, path)
		case kind == 6:
			require.NoError(rt, os.Symlink(rapid.OneOf(name, rapid.Just("../x"), rapid.Just("/")).Draw(rt, "target"), path))
			attributes(path, false)
		case kind == 7 && len(files) > 0:
			require.NoError(rt, os.Link(rapid.SampledFrom(files).Draw(rt, "of"), path))
		case kind == 8:
			require.NoError(rt, unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(uint32(rapid.IntRange(0, 4095).Draw(rt, "major")), uint32(rapid.IntRange(0, 1<<20-1).Draw(rt, "minor"))))))
		default:
			require.NoError(rt, unix.Mkfifo(path, 0o600))
		}
	}
	// Last, and from below upwards: what is done inside a directory changes its time.
	var all []string
	require.NoError(rt, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error { all = append(all, path); return err }))
	for _, a := range slices.Backward(all) {
		when := time.Unix(rapid.Int64Range(-1<<31, 1<<33).Draw(rt, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(rt, "ns"))
		ts := unix.NsecToTimespec(when.UnixNano())
		require.NoError(rt, unix.UtimesNanoAt(unix.AT_FDCWD, a, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
	}
}
