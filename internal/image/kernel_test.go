package image

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// TestKernel makes a directory of what is hard to keep, has GNU tar archive it,
// makes an image of that, mounts the image and compares both by what the kernel
// says of them.
func TestKernel(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	gnutar, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("tar is not installed")
	}
	src := t.TempDir()
	zoo(t, src)
	out, err := exec.Command(gnutar, "-C", src, "-S", "--format=posix", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-cf", "-", ".").Output()
	require.NoError(t, err)

	w := newWorld(t)
	batch := w.store.Begin(t.Context())
	defer batch.Abort()
	tree := NewTree()
	_, err = tree.ApplyTar(t.Context(), bytes.NewReader(out), batch, LayerOptions{})
	require.NoError(t, err)
	img, _, err := w.images.Write(t.Context(), tree, Config{}, batch, DefaultWorkspace, "zoo")
	require.NoError(t, err)

	meta, err := img.MetaPath(t.Context())
	require.NoError(t, err)
	blocks, err := img.Blocks(t.Context())
	require.NoError(t, err)
	device := filepath.Join(t.TempDir(), "device")
	all := make([]byte, blocks.Size())
	require.NoError(t, blocks.ReadAt(t.Context(), all, 0))
	require.NoError(t, os.WriteFile(device, all, 0o600))
	mnt := t.TempDir()
	require.NoError(t, unix.Mount(meta, mnt, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "device="+device))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(mnt, unix.MNT_DETACH)) })

	want := survey(t, src)
	require.Greater(t, len(want), 2000)
	require.Equal(t, want, survey(t, mnt))

	// And the tree that is read back is the one that was written.
	decoded, err := img.Tree(t.Context())
	require.NoError(t, err)
	m1, d1, _, err := encodeTree(decoded)
	require.NoError(t, err)
	require.Equal(t, img.Manifest.Meta.Digest, store.Sum(m1.Bytes))
	require.Equal(t, blocks.Chunks(), d1.chunks)
}

func zoo(t *testing.T, dir string) {
	must := func(err error) { t.Helper(); require.NoError(t, err) }
	p := func(s ...string) string { return filepath.Join(append([]string{dir}, s...)...) }
	must(os.MkdirAll(p("a/b/c"), 0o750))
	must(os.WriteFile(p("a/hello"), []byte("hello"), 0o4755))
	must(os.Chmod(p("a/hello"), 0o755|fs.ModeSetuid|fs.ModeSticky))
	must(os.Link(p("a/hello"), p("a/b/linked")))
	must(os.WriteFile(p("empty"), nil, 0o600))
	must(os.WriteFile(p("big"), storetest.Data(1, 3*store.ChunkSize+17), 0o644))
	must(os.WriteFile(p("same"), storetest.Data(1, 3*store.ChunkSize), 0o644))
	must(os.Symlink("/a/../a/hello", p("soft")))
	must(os.Link(p("soft"), p("soft too")))
	must(os.WriteFile(p("owned"), []byte("o"), 0o644))
	must(os.Lchown(p("owned"), 3_000_000_000, 70_000))
	must(os.Lchown(p("soft"), 1234, 5678))
	must(unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(unix.Mknod(p("block"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70_000))))
	must(unix.Mkfifo(p("fifo"), 0o600))
	must(os.WriteFile(p("caps"), []byte("c"), 0o755))
	must(unix.Lsetxattr(p("caps"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(unix.Lsetxattr(p("a"), "trusted.of.dir", []byte("binary \x00 value"), 0))
	must(os.WriteFile(p(strings.Repeat("n", 255)), []byte("255"), 0o644))
	must(os.WriteFile(p("not UTF-8 \xff\xfe"), []byte("8"), 0o644))
	f, err := os.Create(p("sparse"))
	must(err)
	_, err = f.WriteAt([]byte("in the middle"), 5<<30+1234)
	must(err)
	must(f.Truncate(6 << 30))
	must(f.Close())
	for i := range 2000 {
		must(os.WriteFile(p("a/b/c", fmt.Sprintf("file%d", i)), []byte(fmt.Sprint(i%100)), 0o644))
	}
	old := time.Unix(-100, 0)
	must(os.Chtimes(p("empty"), old, old))
	must(os.Chtimes(p("big"), old, time.Unix(1<<33, 987_654_321)))
}

// survey writes down everything about a directory tree that the kernel says of it.
func survey(t *testing.T, root string) map[string]string {
	out := map[string]string{}
	first := map[uint64]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		rel := strings.TrimPrefix(path, root)
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(path, &st))
		s := fmt.Sprintf("%o %d:%d %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		if !d.IsDir() {
			s += fmt.Sprintf(" size %d rdev %d nlink %d", st.Size, st.Rdev, st.Nlink)
			if name, again := first[st.Ino]; again {
				s += " = " + name
			} else {
				first[st.Ino] = rel
			}
		}
		list := make([]byte, 1<<16)
		n, err := unix.Llistxattr(path, list)
		require.NoError(t, err)
		for name := range strings.SplitSeq(string(list[:n]), "\x00") {
			if name != "" {
				value := make([]byte, 1<<16)
				n, err := unix.Lgetxattr(path, name, value)
				require.NoError(t, err)
				s += fmt.Sprintf(" %s=%q", name, value[:n])
			}
		}
		switch {
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			require.NoError(t, err)
			s += " -> " + to
		case d.Type().IsRegular() && st.Size < 1<<30:
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			s += " " + store.Sum(b).Short()
		case d.Type().IsRegular():
			f, err := os.Open(path)
			require.NoError(t, err)
			defer f.Close()
			for _, at := range []int64{0, 5 << 30, 6<<30 - 4096} {
				b := make([]byte, 4096)
				_, err := f.ReadAt(b, at)
				require.NoError(t, err)
				s += " " + store.Sum(b).Short()
			}
		}
		out[rel] = s
		return nil
	}))
	return out
}

// TestKernelWithoutData mounts an image whose device has no block at all.
func TestKernelWithoutData(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	w := newWorld(t)
	img := w.must("empty", dirEntry("proc"), file("empty", ""))
	meta, err := img.MetaPath(t.Context())
	require.NoError(t, err)
	blocks, err := img.Blocks(t.Context())
	require.NoError(t, err)
	require.Zero(t, blocks.Size())
	device := filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.WriteFile(device, nil, 0o600))
	mnt := t.TempDir()
	require.NoError(t, unix.Mount(meta, mnt, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "device="+device))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(mnt, unix.MNT_DETACH)) })
	b, err := os.ReadFile(filepath.Join(mnt, "empty"))
	require.NoError(t, err)
	require.Empty(t, b)
}
