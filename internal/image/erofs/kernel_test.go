package erofs_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/image/erofs"
)

// write puts metadata and device into files.
func (h *hostile) write(t *testing.T) (meta, device string) {
	m, err := erofs.Encode(h.root, h.blocks())
	require.NoError(t, err)
	dir := t.TempDir()
	meta, device = filepath.Join(dir, "meta"), filepath.Join(dir, "device")
	require.NoError(t, os.WriteFile(meta, m.Bytes, 0o600))
	require.NoError(t, os.WriteFile(device, h.device, 0o600))
	return meta, device
}

// TestFsck has the format's own checker look at it.
func TestFsck(t *testing.T) {
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("fsck.erofs is not installed (Debian: erofs-utils)")
	}
	h := everything(3000)
	meta, device := h.write(t)
	out, err := exec.Command(fsck, "--device="+device, meta).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "<E>")
}

// TestKernel mounts the zoo, with a directory of 100,000 entries, and compares
// everything that the kernel says with what was written.
func TestKernel(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	many := 100_000
	if testing.Short() {
		many = 5000
	}
	h := everything(many)
	meta, device := h.write(t)
	mnt := t.TempDir()
	require.NoError(t, unix.Mount(meta, mnt, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "device="+device))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(mnt, unix.MNT_DETACH)) })

	c := compare{t: t, h: h, inodes: map[*erofs.Inode]uint64{}, names: map[*erofs.Inode]uint64{}}
	c.count(h.root)
	c.walk(mnt, h.root)
	require.Equal(t, len(c.names), len(c.inodes))
	require.Greater(t, c.compared, many+300)
}

type compare struct {
	t        *testing.T
	h        *hostile
	inodes   map[*erofs.Inode]uint64 // their numbers
	names    map[*erofs.Inode]uint64 // how many
	compared int
}

func (c *compare) count(n *erofs.Inode) {
	c.names[n]++
	for _, e := range n.Entries {
		c.count(e.Inode)
	}
}

func (c *compare) walk(path string, n *erofs.Inode) {
	c.compared++
	var st unix.Stat_t
	require.NoError(c.t, unix.Lstat(path, &st), path)
	if ino, again := c.inodes[n]; again {
		require.Equal(c.t, ino, st.Ino, "%s is another file than the other names of its inode", path)
		return
	}
	c.inodes[n] = st.Ino
	got := fmt.Sprintf("%o %d:%d %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
	want := fmt.Sprintf("%o %d:%d %d.%09d", n.Mode, n.UID, n.GID, n.MtimeS, n.MtimeNS)
	require.Equal(c.t, want, got, path)
	require.Equal(c.t, n.Xattrs, xattrs(c.t, path), path)
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		c.dir(path, n, st.Nlink)
		return
	case unix.S_IFREG:
		require.Equal(c.t, n.Size, st.Size, path)
		c.content(path, n)
	case unix.S_IFLNK:
		to, err := os.Readlink(path)
		require.NoError(c.t, err, path)
		require.Equal(c.t, n.Link, to, path)
	case unix.S_IFCHR, unix.S_IFBLK:
		require.Equal(c.t, [2]uint32{n.Major, n.Minor}, [2]uint32{unix.Major(st.Rdev), unix.Minor(st.Rdev)}, path)
	}
	require.Equal(c.t, c.names[n], st.Nlink, path)
}

func (c *compare) dir(path string, n *erofs.Inode, nlink uint64) {
	f, err := os.Open(path)
	require.NoError(c.t, err, path)
	names, err := f.Readdirnames(-1)
	f.Close()
	require.NoError(c.t, err, path)
	slices.Sort(names)
	subdirs, want := uint64(0), make([]string, len(n.Entries))
	for i, e := range n.Entries {
		want[i] = e.Name
		if e.Inode.Mode&unix.S_IFMT == unix.S_IFDIR {
			subdirs++
		}
	}
	require.True(c.t, slices.Equal(want, names), path)
	require.Equal(c.t, 2+subdirs, nlink, path)
	for _, e := range n.Entries {
		c.walk(path+"/"+e.Name, e.Inode)
	}
}

// content compares every chunk, of very large files only those that are no holes
// and their neighbours.
func (c *compare) content(path string, n *erofs.Inode) {
	f, err := os.Open(path)
	require.NoError(c.t, err, path)
	defer f.Close()
	got, want := make([]byte, erofs.ChunkSize), make([]byte, erofs.ChunkSize)
	for i, a := range n.Addrs {
		if a == erofs.Hole && i > 3 && len(n.Addrs) > 1000 {
			continue
		}
		size := min(n.Size-int64(i)*erofs.ChunkSize, erofs.ChunkSize)
		clear(want)
		if a != erofs.Hole {
			copy(want[:size], c.h.device[int(a)*erofs.BlockSize:])
		}
		_, err := f.ReadAt(got[:size], int64(i)*erofs.ChunkSize)
		require.NoError(c.t, err, path)
		require.True(c.t, bytes.Equal(want[:size], got[:size]), "%s, chunk %d", path, i)
	}
	_, err = f.ReadAt(got[:1], n.Size)
	require.ErrorIs(c.t, err, io.EOF, path)
}

func xattrs(t *testing.T, path string) map[string]string {
	list := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, list)
	require.NoError(t, err, path)
	var m map[string]string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, name, value)
		require.NoError(t, err, "%s %s", path, name)
		if m == nil {
			m = map[string]string{}
		}
		m[name] = string(value[:n])
	}
	return m
}
