package slab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/store"
)

// disk is all that a slab asks of the directory that it is in; names are
// relative to it. The tests put a disk under it that forgets, reorders and tears
// what was not synced.
type disk interface {
	// open opens a file for reading and writing, and makes it if need be.
	open(name string) (file, error)
	// read gives the whole of a file, at most max bytes of it.
	read(name string, max int64) ([]byte, error)
	// list gives the names in a directory; none if there is no such directory.
	list(dir string) ([]string, error)
	mkdir(dir string) error
	rename(from, to string) error
	// remove is content if there is no such file.
	remove(name string) error
	// sync makes durable what was made, renamed and removed in a directory.
	sync(dir string) error
	// free gives what the filesystem has left for us, and its size, in bytes.
	free() (free, size int64, err error)
	// path is what others open a file by.
	path(name string) string
}

// file is an open file of a disk.
type file interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// read is ReadAt that leaves nothing more in the page cache than there was: those
	// who read files of images have their own there. It is fastest for
	// whole blocks, and p at the beginning of a page.
	read(p []byte, off int64) (int, error)
	// readDisk is ReadAt past the page cache, where that can be done. Offset and
	// length are in whole blocks, and p is one of alignedBuffer.
	readDisk(p []byte, off int64) (int, error)
	Truncate(size int64) error
	// punch gives the disk back what lies there; it then reads as zeros.
	punch(off, n int64) error
	// size is the length, allocated what the file takes of the disk, in bytes.
	size() (size, allocated int64, err error)
	// sync makes the content durable, and the length.
	sync() error
	Close() error
}

// directory is a disk: a directory of a filesystem.
type directory string

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

func (d directory) open(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// A second description for reading past the page cache, of the same file
	// whatever it is called by then. Not every filesystem has that.
	direct := sync.OnceValue(func() *os.File {
		direct, _ := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY|unix.O_DIRECT, 0)
		return direct
	})
	return &osFile{File: f, direct: direct}, nil
}

func (d directory) read(name string, max int64) ([]byte, error) {
	f, err := os.Open(d.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(st.Size(), max))
	n, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = nil
	}
	return b[:n], err
}

func (d directory) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(d.path(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (d directory) mkdir(dir string) error { return os.MkdirAll(d.path(dir), 0o700) }

func (d directory) rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

func (d directory) remove(name string) error {
	if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (d directory) sync(dir string) error {
	f, err := os.Open(d.path(dir))
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func (d directory) free() (free, size int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(string(d), &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

type osFile struct {
	*os.File
	direct func() *os.File // may give nil
}

func (f *osFile) read(p []byte, off int64) (int, error) {
	direct := f.direct()
	if direct == nil || off%store.BlockSize != 0 || len(p) == 0 || f.cached(off, len(p)) {
		return f.ReadAt(p, off)
	}
	aligned := p
	if len(p)%store.BlockSize != 0 || !isAligned(p) {
		if len(p) > store.ChunkSize {
			return f.ReadAt(p, off)
		}
		b := alignedBuffers.Get().(*[]byte)
		defer alignedBuffers.Put(b)
		aligned = (*b)[:(len(p)+store.BlockSize-1)&^(store.BlockSize-1)]
	}
	n, err := readNow(direct, aligned, off)
	if errors.Is(err, unix.EOPNOTSUPP) {
		n, _ = direct.ReadAt(aligned, off)
	}
	if n < len(p) { // it would wait for somebody, or it ends before, or the disk has larger blocks
		return f.ReadAt(p, off)
	}
	if &aligned[0] != &p[0] {
		copy(p, aligned)
	}
	return len(p), nil
}

// readNow reads without waiting for locks, only for the disk: on ext4, whoever
// writes into a file and is slowed down for it keeps direct reads waiting, but not those
// through the page cache.
func readNow(f *os.File, p []byte, off int64) (n int, err error) {
	conn, err := f.SyscallConn()
	if err == nil {
		closed := conn.Control(func(fd uintptr) {
			n, err = unix.Preadv2(int(fd), [][]byte{p}, off, unix.RWF_NOWAIT)
		})
		err = errors.Join(err, closed)
	}
	return n, err
}

// cached reports whether it is better to read through the page cache: it has all of
// that, or some of it has yet to be written to the disk. A kernel that cannot
// tell (before 6.5) reads through it always.
func (f *osFile) cached(off int64, n int) bool {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	return err != nil || st.Dirty > 0 || st.Writeback > 0 || st.Cache >= uint64((n+store.BlockSize-1)/store.BlockSize)
}

var alignedBuffers = sync.Pool{New: func() any { b := alignedBuffer(store.ChunkSize); return &b }}

func isAligned(p []byte) bool { return uintptr(unsafe.Pointer(&p[0]))%store.BlockSize == 0 }

func (f *osFile) readDisk(p []byte, off int64) (int, error) {
	if direct := f.direct(); direct != nil {
		n, err := direct.ReadAt(p, off)
		if !errors.Is(err, unix.EINVAL) { // a filesystem with larger blocks
			return n, err
		}
	}
	// Clean pages go, so that the next reading is of the disk.
	_ = unix.Fadvise(int(f.Fd()), off, int64(len(p)), unix.FADV_DONTNEED)
	return f.ReadAt(p, off)
}

func (f *osFile) punch(off, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (f *osFile) size() (size, allocated int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, 0, err
	}
	return st.Size, st.Blocks * 512, nil
}

func (f *osFile) sync() error { return unix.Fdatasync(int(f.Fd())) }

func (f *osFile) Close() error {
	if direct := f.direct(); direct != nil {
		direct.Close()
	}
	return f.File.Close()
}

// alignedBuffer is memory for readDisk.
func alignedBuffer(n int) []byte {
	b := make([]byte, n+store.BlockSize)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (store.BlockSize - 1)
	return b[skip : skip+n : skip+n]
}

// content is what publish writes, as one piece.
func content(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// publish makes what write writes the durable content of a file, all or nothing, and gives
// it open.
func publish(d disk, name string, write func(io.Writer) error) (file, error) {
	temp := name + newSuffix
	if err := d.remove(temp); err != nil {
		return nil, err
	}
	f, err := d.open(temp)
	if err != nil {
		return nil, err
	}
	err = write(io.NewOffsetWriter(f, 0))
	if err == nil {
		err = f.sync()
	}
	if err == nil {
		err = d.rename(temp, name)
	}
	if err == nil {
		err = d.sync(filepath.Dir(name))
	}
	if err != nil {
		f.Close()
		_ = d.remove(temp)
		return nil, err
	}
	return f, nil
}

// newSuffix marks files that are not published yet; those that are found at
// opening are what a crash left.
const newSuffix = ".new"

func isTemporary(name string) bool { return strings.HasSuffix(name, newSuffix) }
