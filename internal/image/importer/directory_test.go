package importer

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// writeTree makes a tree with everything that a root filesystem has.
func writeTree(t *testing.T) string {
	needRoot(t)
	dir := t.TempDir()
	p := func(name string) string { return filepath.Join(dir, name) }
	ok := func(err error) {
		t.Helper()
		require.NoError(t, err)
	}
	ok(os.MkdirAll(p("a/deep/er"), 0o755))
	ok(os.Mkdir(p("sticky"), 0o755))
	ok(unix.Chmod(p("sticky"), 0o1777))
	ok(os.WriteFile(p("a/file"), []byte("file"), 0o640))
	ok(os.Chown(p("a/file"), 70000, 4000000000))
	ok(os.WriteFile(p("a/setuid"), []byte("s"), 0o755))
	ok(unix.Chmod(p("a/setuid"), 0o6755))
	ok(os.Link(p("a/file"), p("b-link")))
	ok(os.Link(p("a/file"), p("a/deep/0-link")))
	ok(os.Symlink("/a/file", p("sym")))
	ok(unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	ok(unix.Mknod(p("disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(259, 65536))))
	ok(unix.Mkfifo(p("fifo"), 0o600))
	ok(os.WriteFile(p("caps"), []byte("c"), 0o755))
	ok(unix.Setxattr(p("caps"), "security.capability", []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	ok(unix.Setxattr(p("a/deep"), "trusted.x", []byte("dir\x00"), 0))
	ok(os.WriteFile(p(strings.Repeat("n", 255)), nil, 0o600))
	ok(os.WriteFile(p("\xff\xfe not UTF-8"), []byte("bytes"), 0o600))
	ok(os.WriteFile(p("big"), bytes.Repeat([]byte("0123456789"), 50_000), 0o600))
	f, err := os.Create(p("sparse"))
	ok(err)
	ok(f.Truncate(5 << 30))
	_, err = f.WriteAt([]byte("middle"), 3<<30)
	ok(err)
	_, err = f.WriteAt([]byte("end"), 5<<30-3)
	ok(err)
	ok(f.Close())
	ok(unix.UtimesNanoAt(unix.AT_FDCWD, p("sym"), []unix.Timespec{{Sec: 1, Nsec: 2}, {Sec: 1234567890, Nsec: 123456789}}, unix.AT_SYMLINK_NOFOLLOW))
	ok(unix.UtimesNanoAt(unix.AT_FDCWD, p("a/file"), []unix.Timespec{{Sec: 1, Nsec: 2}, {Sec: -1, Nsec: 999999999}}, 0))
	return dir
}

// TestDirectoryKeepsEverything compares the image with the directory itself,
// attribute for attribute.
func TestDirectoryKeepsEverything(t *testing.T) {
	dir := writeTree(t)
	b := newBench(t)
	r, tree := b.ok(dir)
	require.Equal(t, Directory, r.Kind)
	require.Empty(t, r.Skipped)
	require.Less(t, r.NewBytes, int64(2<<20))

	names := map[string]bool{}
	firsts := map[uint64]*image.Node{}
	require.NoError(t, tree.Walk(func(p string, n *image.Node) error {
		names[p] = true
		n = n.File()
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(filepath.Join(dir, p), &st), p)
		require.Equal(t, st.Mode, n.Mode, p)
		require.Equal(t, []uint32{st.Uid, st.Gid}, []uint32{n.UID, n.GID}, p)
		require.Equal(t, time.Unix(st.Mtim.Unix()), time.Unix(n.MtimeS, int64(n.MtimeNS)), p)
		require.Equal(t, []uint32{unix.Major(st.Rdev), unix.Minor(st.Rdev)}, []uint32{n.Major, n.Minor}, p)
		if st.Nlink > 1 && !n.IsDir() {
			if firsts[st.Ino] == nil {
				firsts[st.Ino] = n
			}
			require.Same(t, firsts[st.Ino], n, p)
		}
		switch n.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			link, err := os.Readlink(filepath.Join(dir, p))
			require.NoError(t, err)
			require.Equal(t, link, n.Link)
		case unix.S_IFREG:
			require.Equal(t, st.Size, n.Size, p)
			if st.Size < 1<<30 {
				want, err := os.ReadFile(filepath.Join(dir, p))
				require.NoError(t, err)
				require.Equal(t, string(want), b.content(n), p)
			}
		}
		return nil
	}))
	require.Len(t, names, 18)
	require.EqualValues(t, 1, len(firsts))

	require.Equal(t, map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}, must(tree.Lookup("/caps")).Xattrs)
	require.Equal(t, map[string]string{"trusted.x": "dir\x00"}, must(tree.Lookup("/a/deep")).Xattrs)

	// Of the 5 GiB only what is not zero is there.
	var data []string
	off := int64(0)
	for _, c := range must(tree.Lookup("/sparse")).Chunks {
		if !c.Digest.IsZero() {
			buf := make([]byte, c.Size)
			_, err := b.store.ReadChunk(t.Context(), c, buf)
			require.NoError(t, err)
			data = append(data, fmt.Sprintf("%d %q", off, strings.Trim(string(buf), "\x00")))
		}
		off += int64(c.Size)
	}
	require.Equal(t, []string{fmt.Sprintf("%d %q", 3<<30, "middle"), fmt.Sprintf("%d %q", 5<<30-128<<10, "end")}, data)

	again, _ := b.ok(dir)
	require.Equal(t, r.Digest, again.Digest)
	require.Zero(t, again.NewChunks)
}

func TestMountPointsAreNotEntered(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "proc"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "resolv.conf"), nil, 0o644))
	require.NoError(t, unix.Mount("none", filepath.Join(dir, "proc"), "tmpfs", 0, "size=1m,mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(filepath.Join(dir, "proc"), 0)) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "proc", "inside"), []byte("x"), 0o600))
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("of the host"), 0o644))
	require.NoError(t, unix.Mount(other, filepath.Join(dir, "resolv.conf"), "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(filepath.Join(dir, "resolv.conf"), 0)) })

	b := newBench(t)
	r, tree := b.ok(dir)
	require.Equal(t, []string{"proc", "resolv.conf"}, r.Skipped)
	require.Equal(t, []string{"/ 755", "/proc/ 700", `/resolv.conf 644 ""`}, b.list(tree))

	// The directory itself may be a mount point.
	r, tree = b.ok(filepath.Join(dir, "proc"))
	require.Empty(t, r.Skipped)
	require.Equal(t, []string{"/ 700", `/inside 600 "x"`}, b.list(tree))
}

func TestDirectoryThroughASymbolicLink(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "f"), []byte("x"), 0o644))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "link")))
	b := newBench(t)
	_, tree := b.ok(filepath.Join(dir, "link"))
	require.Equal(t, []string{"/ 755", `/f 644 "x"`}, b.list(tree))
}

// TestChangingFiles changes a file after the walk and before or during the reading.
func TestChangingFiles(t *testing.T) {
	for name, change := range map[string]func(file string) error{
		"grown":    func(f string) error { return os.WriteFile(f, bytes.Repeat([]byte("y"), 2<<20), 0o600) },
		"shrunk":   func(f string) error { return os.Truncate(f, 10) },
		"replaced": func(f string) error { os.Remove(f); return os.WriteFile(f, bytes.Repeat([]byte("x"), 1<<20), 0o600) },
		"removed":  os.Remove,
		"link": func(f string) error {
			os.Remove(f)
			return os.Symlink("/etc/passwd", f)
		},
		"fifo":                  func(f string) error { os.Remove(f); return unix.Mkfifo(f, 0o600) },
		"directory over a link": func(f string) error { d := filepath.Dir(f); os.Rename(d, d+"-old"); return os.Symlink("/etc", d) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "sub", "z-file")
			require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
			require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("x"), 1<<20), 0o600))
			root, err := os.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			_, w, err := walkTree(t.Context(), root)
			require.NoError(t, err)
			require.NoError(t, change(file))
			b := newBench(t)
			batch := b.store.Begin(t.Context())
			defer batch.Abort()
			err = w.read(t.Context(), batch, nil)
			require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, "sub/z-file changed while it was being read")
			require.NotEmpty(t, fault.HintOf(err))
		})
	}
	t.Run("while it is read", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "f")
		require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("x"), 1<<20), 0o600))
		b := newBench(t)
		before := b.files()
		_, err := b.Import(t.Context(), Request{Path: dir, Workspace: "default", Name: "x"}, func(done, total int64) {
			if done < total {
				require.NoError(t, os.Chtimes(file, time.Now(), time.Unix(done, 0)))
			}
		})
		require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, "f changed while it was being read")
		require.Equal(t, before, b.files())
	})
}

// TestUnreadableFile takes a directory with a file that nobody may read: root may
// write to flush, and that is all.
func TestUnreadableFile(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	before := b.files()
	_, err := b.do("/proc/sys/net/ipv4/route")
	require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
	require.EqualError(t, err, "import /proc/sys/net/ipv4/route: read flush: permission denied")
	require.Equal(t, "The server has to be able to read every file of the tree.", fault.HintOf(err))
	require.Equal(t, before, b.files())

	require.NoError(t, pathErrorCase(unix.EACCES, fault.Invalid, "permission denied"))
	require.NoError(t, pathErrorCase(unix.EIO, fault.Corrupt, "input/output error"))
	require.NoError(t, pathErrorCase(unix.ENOENT, fault.Invalid, "changed while it was being read"))
}

func pathErrorCase(errno unix.Errno, class fault.Class, text string) error {
	err := pathError("secret", "read", errno)
	if fault.ClassOf(err) != class || !strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("%w is %s: %w", errno, fault.ClassOf(err), err)
	}
	return nil
}

// TestDiskFull imports into a store on a filesystem that is too small.
func TestDiskFull(t *testing.T) {
	needRoot(t)
	disk := t.TempDir()
	require.NoError(t, unix.Mount("none", disk, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })

	src := t.TempDir()
	noise, err := os.Open("/dev/urandom")
	require.NoError(t, err)
	defer noise.Close()
	for i := range 24 {
		b := make([]byte, 1<<20)
		_, err := noise.Read(b)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(src, fmt.Sprint(i)), b, 0o600))
	}
	archive := tarOf(t, src)
	for name, path := range map[string]string{"directory": src, "tar": write(t, archive), "layout": writeLayout(t, imageOf(t, layerOfBytes(t, archive)))} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(disk, name)
			b := newBenchIn(t, dir)
			before := b.files()
			free := freeBytes(t, disk)
			_, err := b.do(path)
			require.Equal(t, fault.DiskFull, fault.ClassOf(err), "%v", err)
			require.NotEmpty(t, fault.HintOf(err))
			require.Equal(t, before, b.files())
			require.InDelta(t, free, freeBytes(t, disk), 64<<10) // but for the copy of the indexes

			require.NoError(t, unix.Mount("none", disk, "tmpfs", unix.MS_REMOUNT, "size=80m"))
			r, _ := b.ok(path)
			require.EqualValues(t, 24<<20, r.Bytes)
			require.NoError(t, b.stores.Close())
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, unix.Mount("none", disk, "tmpfs", unix.MS_REMOUNT, "size=8m"))
		})
	}
}

func freeBytes(t *testing.T, dir string) uint64 {
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	return st.Bfree * uint64(st.Bsize)
}
