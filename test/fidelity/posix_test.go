package fidelity

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/store"
)

const bigSize = 3*store.ChunkSize + 17

// TestPOSIX asks a mounted image what POSIX and Linux promise to readers.
func TestPOSIX(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	entries := []entry{dir("./").perm(0o755), reg("big", noise(7, bigSize)), reg("small", "small"), reg("empty", ""), reg("other", noise(8, 5000)),
		reg("script", "#!/bin/sh\necho ran \"$0\"\n").perm(0o755), reg("secret", "s").perm(0o600).owned(5, 5), reg("odd", "o").perm(0o640).owned(1234, 1234),
		dir("dir"), reg("dir/inside", "i"), dir("closed").perm(0o700).owned(5, 5), reg("closed/x", "x"),
		symlink("to small", "small"), symlink("loop", "loop"), symlink("to dir", "dir"), hardlink("small too", "small"),
		member('6', "fifo", 0o600), device('3', "zero", 1, 5), dir("many")}
	for i := range 3000 {
		entries = append(entries, reg(fmt.Sprintf("many/file%04d", i), ""))
	}
	img := w.load(layout(t, layer(t, entries...)))
	w.mounts(t, img, func(t *testing.T, root string) {
		// In a process of its own: the one that serves a mount must not map its files.
		cmd := exec.Command(os.Args[0], "-test.run=^TestPOSIXInside$", "-test.timeout=2m", "-test.v")
		cmd.Env = append(os.Environ(), insideKey+"="+root)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS: TestPOSIXInside/maps")
	})
}

const insideKey = "BRISK_FIDELITY_ROOT"

// TestPOSIXInside is what TestPOSIX runs on each mount.
func TestPOSIXInside(t *testing.T) {
	root := os.Getenv(insideKey)
	if root == "" {
		t.Skip("TestPOSIX runs it")
	}
	for name, test := range posix {
		t.Run(name, func(t *testing.T) { test(t, func(rel string) string { return filepath.Join(root, rel) }) })
	}
}

func open(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	require.NoError(t, err, path)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func openFails(t *testing.T, want error, path string, flags int) {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_ = unix.Close(fd)
	}
	require.ErrorIs(t, err, want, "%s %#x", path, flags)
}

var posix = map[string]func(t *testing.T, at func(string) string){
	"nothing can be changed": func(t *testing.T, at func(string) string) {
		small := at("small")
		for what, err := range map[string]error{
			"mkdir":     unix.Mkdir(at("new"), 0o755),
			"mknod":     unix.Mknod(at("new"), unix.S_IFIFO|0o600, 0),
			"unlink":    unix.Unlink(small),
			"rmdir":     unix.Rmdir(at("dir")),
			"rename":    unix.Rename(small, at("new")),
			"link":      unix.Link(small, at("new")),
			"symlink":   unix.Symlink("x", at("new")),
			"chmod":     unix.Chmod(small, 0o777),
			"chown":     unix.Lchown(small, 1, 1),
			"truncate":  unix.Truncate(small, 0),
			"utimes":    unix.UtimesNanoAt(unix.AT_FDCWD, small, []unix.Timespec{{}, {}}, 0),
			"setxattr":  unix.Setxattr(small, "user.x", []byte("x"), 0),
			"remove it": unix.Removexattr(small, "user.x"),
			"access":    unix.Access(small, unix.W_OK),
		} {
			require.ErrorIs(t, err, unix.EROFS, what)
		}
		openFails(t, unix.EROFS, small, unix.O_WRONLY)
		openFails(t, unix.EROFS, small, unix.O_RDWR)
		openFails(t, unix.EROFS, small, unix.O_RDONLY|unix.O_TRUNC)
		openFails(t, unix.EROFS, at("new"), unix.O_CREAT|unix.O_WRONLY)
		openFails(t, unix.EEXIST, small, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
		fd := open(t, small, unix.O_RDONLY)
		_, err := unix.Write(fd, []byte("x"))
		require.ErrorIs(t, err, unix.EBADF)
		require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EINVAL)
	},
	"what open refuses": func(t *testing.T, at func(string) string) {
		openFails(t, unix.ENOENT, at("no such"), unix.O_RDONLY)
		openFails(t, unix.ENOTDIR, at("small/x"), unix.O_RDONLY)
		openFails(t, unix.ENOTDIR, at("small"), unix.O_RDONLY|unix.O_DIRECTORY)
		openFails(t, unix.EISDIR, at("dir"), unix.O_RDWR)
		openFails(t, unix.ELOOP, at("loop"), unix.O_RDONLY)
		openFails(t, unix.ELOOP, at("to small"), unix.O_RDONLY|unix.O_NOFOLLOW)
		openFails(t, unix.ENAMETOOLONG, at(strings.Repeat("n", 256)), unix.O_RDONLY)
		openFails(t, unix.ENOENT, at(strings.Repeat("n", 255)), unix.O_RDONLY)
		openFails(t, unix.EACCES, at("zero"), unix.O_RDONLY) // the mount is nodev
		require.NoError(t, unix.Close(open(t, at("to small"), unix.O_RDONLY)))
	},
	"reads at every edge": func(t *testing.T, at func(string) string) {
		fd, want := open(t, at("big"), unix.O_RDONLY), []byte(noise(7, bigSize))
		for _, off := range []int{0, 1, 4095, 4096, store.ChunkSize - 1, store.ChunkSize, 3*store.ChunkSize - 1, 3 * store.ChunkSize, bigSize - 1, bigSize, bigSize + 1, bigSize + 1<<20} {
			for _, n := range []int{0, 1, 4096, store.ChunkSize, store.ChunkSize + 1, bigSize} {
				buf := make([]byte, n)
				got, err := unix.Pread(fd, buf, int64(off))
				require.NoError(t, err)
				expect := want[min(off, bigSize):min(off+n, bigSize)]
				require.Equal(t, len(expect), got, "%d bytes at %d", n, off)
				require.True(t, bytes.Equal(expect, buf[:got]), "%d bytes at %d", n, off)
			}
		}
		_, err := unix.Pread(fd, make([]byte, 1), -1)
		require.ErrorIs(t, err, unix.EINVAL)
		a, b := make([]byte, 100), make([]byte, 5000)
		n, err := unix.Preadv(fd, [][]byte{a, b}, store.ChunkSize-50)
		require.NoError(t, err)
		require.Equal(t, 5100, n)
		require.Equal(t, want[store.ChunkSize-50:store.ChunkSize+5050], slices.Concat(a, b))
	},
	"seeks": func(t *testing.T, at func(string) string) {
		fd := open(t, at("big"), unix.O_RDONLY)
		for _, c := range []struct {
			off    int64
			whence int
			want   int64
		}{{5, unix.SEEK_SET, 5}, {7, unix.SEEK_CUR, 12}, {-3, unix.SEEK_END, bigSize - 3}, {1 << 40, unix.SEEK_SET, 1 << 40}, {0, unix.SEEK_DATA, 0}, {0, unix.SEEK_HOLE, bigSize}} {
			got, err := unix.Seek(fd, c.off, c.whence)
			require.NoError(t, err)
			require.Equal(t, c.want, got, "%+v", c)
		}
		_, err := unix.Seek(fd, -1, unix.SEEK_SET)
		require.ErrorIs(t, err, unix.EINVAL)
		_, err = unix.Seek(fd, bigSize, unix.SEEK_DATA)
		require.ErrorIs(t, err, unix.ENXIO)
	},
	"maps": func(t *testing.T, at func(string) string) {
		fd, want := open(t, at("big"), unix.O_RDONLY), noise(7, bigSize)
		for _, flags := range []int{unix.MAP_SHARED, unix.MAP_PRIVATE} {
			m, err := unix.Mmap(fd, 0, bigSize, unix.PROT_READ, flags)
			require.NoError(t, err)
			require.True(t, string(m) == want)
			// What is behind the end in the last page is zeros.
			tail := unsafe.Slice(unsafe.SliceData(m), (bigSize+4095)/4096*4096)[bigSize:]
			require.Equal(t, make([]byte, len(tail)), tail)
			require.NoError(t, unix.Munmap(m))
		}
		m, err := unix.Mmap(fd, store.ChunkSize, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		require.NoError(t, err)
		m[0]++
		require.NoError(t, unix.Munmap(m))
		b := make([]byte, 1)
		_, err = unix.Pread(fd, b, store.ChunkSize)
		require.NoError(t, err)
		require.Equal(t, want[store.ChunkSize], b[0])
		_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.ErrorIs(t, err, unix.EACCES)
	},
	"maps and reads at once": func(t *testing.T, at func(string) string) {
		want := noise(7, bigSize)
		var wg sync.WaitGroup
		errs := make(chan error, 16)
		for i := range 8 {
			wg.Go(func() {
				f, err := os.Open(at("big"))
				if err != nil {
					errs <- err
					return
				}
				defer f.Close()
				if i%2 == 0 {
					b, err := io.ReadAll(f)
					if err == nil && string(b) != want {
						err = errors.New("read other bytes")
					}
					if err != nil {
						errs <- err
					}
					return
				}
				m, err := unix.Mmap(int(f.Fd()), 0, bigSize, unix.PROT_READ, unix.MAP_SHARED)
				if err == nil && string(m) != want {
					err = errors.New("mapped other bytes")
				}
				if err != nil {
					errs <- err
					return
				}
				_ = unix.Munmap(m)
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	},
	"direct I/O, if there is any": func(t *testing.T, at func(string) string) {
		fd, err := unix.Open(at("big"), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EINVAL) {
			return // a filesystem may refuse it
		}
		require.NoError(t, err)
		defer unix.Close(fd)
		m, err := unix.Mmap(-1, 0, 4*store.ChunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		require.NoError(t, err)
		defer func() { require.NoError(t, unix.Munmap(m)) }()
		n, err := unix.Pread(fd, m, 0)
		require.NoError(t, err)
		require.Equal(t, bigSize, n)
		require.True(t, string(m[:n]) == noise(7, bigSize))
	},
	"copies without user space": func(t *testing.T, at func(string) string) {
		want := noise(7, bigSize)
		in := open(t, at("big"), unix.O_RDONLY)
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		require.NoError(t, err)
		defer out.Close()
		for off := int64(0); off < bigSize; {
			n, err := unix.Sendfile(int(out.Fd()), in, &off, bigSize)
			require.NoError(t, err)
			require.NotZero(t, n)
		}
		b, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		require.True(t, string(b) == want)

		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		off := int64(store.ChunkSize - 100)
		n, err := unix.Splice(in, &off, int(w.Fd()), nil, 4096, 0)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		b, err = io.ReadAll(r)
		require.NoError(t, err)
		require.Len(t, b, int(n))
		require.True(t, string(b) == want[store.ChunkSize-100:][:n])
	},
	"hints are taken": func(t *testing.T, at func(string) string) {
		fd := open(t, at("other"), unix.O_RDONLY)
		for _, advice := range []int{unix.FADV_WILLNEED, unix.FADV_SEQUENTIAL, unix.FADV_RANDOM, unix.FADV_DONTNEED, unix.FADV_NOREUSE} {
			require.NoError(t, unix.Fadvise(fd, 0, 0, advice))
		}
		require.NoError(t, unix.Flock(fd, unix.LOCK_EX))
		lock := unix.Flock_t{Type: unix.F_RDLCK}
		require.NoError(t, unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lock))
		b := make([]byte, 5000)
		_, err := unix.Pread(fd, b, 0)
		require.NoError(t, err)
		require.Equal(t, noise(8, 5000), string(b))
	},
	"directories list all, from anywhere": func(t *testing.T, at func(string) string) {
		fd := open(t, at("many"), unix.O_RDONLY|unix.O_DIRECTORY)
		whole, offsets := list(t, fd, 64<<10)
		require.Len(t, whole, 3002)
		require.Equal(t, []string{".", "..", "file0000"}, slices.Sorted(slices.Values(whole))[:3])
		_, err := unix.Seek(fd, 0, unix.SEEK_SET)
		require.NoError(t, err)
		small, _ := list(t, fd, 64)
		require.Equal(t, whole, small)
		for _, i := range []int{0, 1, 100, 1500, 3000, 3001} {
			_, err := unix.Seek(fd, offsets[i], unix.SEEK_SET)
			require.NoError(t, err)
			rest, _ := list(t, fd, 4096)
			require.Equal(t, whole[i+1:], append([]string{}, rest...), "after entry %d", i)
		}
		_, err = unix.Read(fd, make([]byte, 10))
		require.ErrorIs(t, err, unix.EISDIR)
	},
	"inodes": func(t *testing.T, at func(string) string) {
		var a, b, root, up unix.Stat_t
		require.NoError(t, unix.Stat(at("small"), &a))
		require.NoError(t, unix.Stat(at("small too"), &b))
		require.Equal(t, a, b)
		require.EqualValues(t, 2, a.Nlink)
		require.NoError(t, unix.Stat(at("."), &root))
		require.NoError(t, unix.Stat(at("dir/.."), &up))
		require.Equal(t, root.Ino, up.Ino)
		require.Equal(t, root.Dev, a.Dev)
		require.EqualValues(t, 5, root.Nlink) // itself, ., and the .. of its three directories
		var x unix.Statx_t
		require.NoError(t, unix.Statx(unix.AT_FDCWD, at("big"), 0, unix.STATX_BASIC_STATS, &x))
		require.EqualValues(t, bigSize, x.Size)
		basic := uint32(unix.STATX_BASIC_STATS &^ unix.STATX_ATIME) // a read-only filesystem keeps none
		require.Equal(t, basic, x.Mask&basic)
		before := a.Atim
		_, err := os.ReadFile(at("small"))
		require.NoError(t, err)
		require.NoError(t, unix.Stat(at("small"), &a))
		require.Equal(t, before, a.Atim)
	},
	"links read in part": func(t *testing.T, at func(string) string) {
		b := make([]byte, 3)
		n, err := unix.Readlink(at("to small"), b)
		require.NoError(t, err)
		require.Equal(t, "sma", string(b[:n]))
		_, err = unix.Readlink(at("small"), b)
		require.ErrorIs(t, err, unix.EINVAL)
		_, err = os.Stat(at("to dir/inside"))
		require.NoError(t, err)
	},
	"the filesystem": func(t *testing.T, at func(string) string) {
		var s unix.Statfs_t
		require.NoError(t, unix.Statfs(at("."), &s))
		require.EqualValues(t, 4096, s.Bsize)
		require.EqualValues(t, 255, s.Namelen)
		require.Zero(t, s.Bfree)
		want := int64(unix.ST_RDONLY | unix.ST_NODEV | unix.ST_NOSUID)
		require.Equal(t, want, s.Flags&want)
	},
	"xattrs": func(t *testing.T, at func(string) string) {
		_, err := unix.Getxattr(at("small"), "user.none", nil)
		require.ErrorIs(t, err, unix.ENODATA)
		n, err := unix.Listxattr(at("small"), nil)
		require.NoError(t, err)
		require.Zero(t, n)
	},
	"programs run": func(t *testing.T, at func(string) string) {
		out, err := exec.Command(at("script")).CombinedOutput()
		require.NoError(t, err, string(out))
		require.Equal(t, "ran "+at("script")+"\n", string(out))
		require.ErrorIs(t, exec.Command(at("small")).Run(), os.ErrPermission)
	},
	"the owner counts": func(t *testing.T, at func(string) string) {
		// Every directory above must let others through, which a test's own do not;
		// so enter before becoming somebody else.
		for script, want := range map[string]string{
			"cat secret":     "Permission denied",
			"ls closed":      "Permission denied",
			"cat closed/x":   "Permission denied",
			"cat odd":        "o",
			"cat small":      "small",
			"cat 'to small'": "small",
		} {
			cmd := exec.Command("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "sh", "-c", script)
			cmd.Dir, cmd.Env = at("."), append(os.Environ(), "LC_ALL=C")
			out, _ := cmd.CombinedOutput()
			require.Contains(t, string(out), want, script)
		}
	},
	"handles": func(t *testing.T, at func(string) string) {
		h, id, err := unix.NameToHandleAt(unix.AT_FDCWD, at("small"), 0)
		require.NoError(t, err)
		require.NotZero(t, id)
		mount := open(t, at("."), unix.O_RDONLY|unix.O_DIRECTORY)
		fd, err := unix.OpenByHandleAt(mount, h, unix.O_RDONLY)
		require.NoError(t, err)
		defer unix.Close(fd)
		b := make([]byte, 10)
		n, err := unix.Read(fd, b)
		require.NoError(t, err)
		require.Equal(t, "small", string(b[:n]))
	},
}

// list reads a directory from where it is, with getdents64 into a buffer of n
// bytes, and gives the names and the offset behind each.
func list(t *testing.T, fd, n int) (names []string, offsets []int64) {
	t.Helper()
	buf := make([]byte, n)
	for {
		got, err := unix.Getdents(fd, buf)
		require.NoError(t, err)
		if got == 0 {
			return names, offsets
		}
		for b := buf[:got]; len(b) > 0; {
			length := binary.LittleEndian.Uint16(b[16:])
			name, _, _ := bytes.Cut(b[19:length], []byte{0})
			names, offsets = append(names, string(name)), append(offsets, int64(binary.LittleEndian.Uint64(b[8:])))
			b = b[length:]
		}
	}
}
