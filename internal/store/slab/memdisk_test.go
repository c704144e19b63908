package slab

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// memDisk is a disk in memory that knows what was synced. It can crash at any
// operation, and says what may be left then: of what was not synced, each part
// may be there, or be missing, or be there in part, or in another order.
type memDisk struct {
	mu      sync.Mutex
	files   map[string]*inode // as the process sees them
	durable map[string]*inode // as they were when their directory was last synced
	changes []change          // of names, since then
	ops     int
	crashAt int // operations from this one on fail; 0: none does
	room    int64

	before func(op, name string) error // asked before each operation, without mu; may block
}

// inode is a file's content, with what was done to it since it was synced.
type inode struct {
	name     string // for before; that of the last open
	content  []byte
	synced   []byte
	unsynced []edit
	holes    map[int64]bool // blocks that take nothing of the disk
}

// edit is a write, or, without data, a hole, or, with n negative, a truncation to off.
type edit struct {
	off  int64
	data []byte
	n    int64
}

// change is one of names: from, if any, became to, if any.
type change struct {
	from, to string
	inode    *inode
}

var errCrashed = errors.New("the machine has no power")

func newMemDisk() *memDisk {
	return &memDisk{files: map[string]*inode{}, durable: map[string]*inode{}, room: 1 << 40}
}

// do is asked by each operation that changes something.
func (d *memDisk) do(op, name string) error {
	if d.before != nil {
		if err := d.before(op, name); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops++
	if d.crashAt > 0 && d.ops >= d.crashAt {
		return errCrashed
	}
	return nil
}

func (d *memDisk) open(name string) (file, error) {
	if err := d.do("open", name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.files[name]
	if i == nil {
		i = &inode{name: name, holes: map[int64]bool{}}
		d.files[name] = i
		d.changes = append(d.changes, change{"", name, i})
	}
	return &memFile{d: d, i: i}, nil
}

func (d *memDisk) read(name string, limit int64) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.files[name]
	if i == nil {
		return nil, os.ErrNotExist
	}
	return slices.Clone(i.content[:min(int64(len(i.content)), limit)]), nil
}

func (d *memDisk) list(dir string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.files {
		if path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (d *memDisk) mkdir(string) error { return nil }

func (d *memDisk) rename(from, to string) error {
	if err := d.do("rename", to); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.files[from]
	delete(d.files, from)
	d.files[to] = i
	i.name = to
	d.changes = append(d.changes, change{from, to, i})
	return nil
}

func (d *memDisk) remove(name string) error {
	if err := d.do("remove", name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] != nil {
		delete(d.files, name)
		d.changes = append(d.changes, change{name, "", nil})
	}
	return nil
}

func (d *memDisk) sync(dir string) error {
	if err := d.do("sync", dir); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := d.changes[:0]
	for _, c := range d.changes {
		if path.Dir(c.from+c.to) == dir || path.Dir(c.to) == dir && c.to != "" {
			c.apply(d.durable)
		} else {
			kept = append(kept, c)
		}
	}
	d.changes = kept
	return nil
}

func (c change) apply(files map[string]*inode) {
	if c.from != "" {
		delete(files, c.from)
	}
	if c.to != "" {
		files[c.to] = c.inode
	}
}

func (d *memDisk) free() (int64, int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	used := int64(0)
	for _, i := range d.files {
		used += i.allocated()
	}
	return d.room - used, d.room, nil
}

func (d *memDisk) path(name string) string { return "/mem/" + name }

// loss says what becomes of what was not synced.
type loss int

const (
	keepAll   loss = iota // the process was killed, not the machine
	dropAll               // nothing of what was not synced is left
	dropNames             // names are as they were when synced, contents as they are
	anything              // some of it is left, in part, in any order
)

// afterCrash is a disk that may be left when this one crashes now.
func (d *memDisk) afterCrash(how loss, r *rand.Rand) *memDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := newMemDisk()
	left.room = d.room
	names := map[string]*inode{}
	maps.Copy(names, d.durable)
	n := len(d.changes)
	switch how {
	case dropAll, dropNames:
		n = 0
	case anything:
		n = r.IntN(n + 1) // a journal keeps their order
	}
	for _, c := range d.changes[:n] {
		c.apply(names)
	}
	for name, i := range names {
		c := i.afterCrash(how, r)
		left.files[name] = c
		left.durable[name] = c
	}
	return left
}

func (i *inode) afterCrash(how loss, r *rand.Rand) *inode {
	left := &inode{name: i.name, content: slices.Clone(i.synced), holes: map[int64]bool{}}
	edits := slices.Clone(i.unsynced)
	switch how {
	case dropAll:
		edits = nil
	case anything:
		r.Shuffle(len(edits), func(a, b int) { edits[a], edits[b] = edits[b], edits[a] })
		kept := edits[:0]
		for _, e := range edits {
			switch what := r.IntN(4); {
			case what == 0:
			case what == 1 && len(e.data) > 512: // torn, at either end
				n := 512 * (1 + r.IntN(len(e.data)/512))
				if r.IntN(2) == 0 {
					e.off += int64(n)
					e.data = e.data[n:]
				} else {
					e.data = e.data[:n]
				}
				kept = append(kept, e)
			default:
				kept = append(kept, e)
			}
		}
		edits = kept
	}
	for _, e := range edits {
		left.apply(e)
	}
	left.synced = slices.Clone(left.content)
	return left
}

func (i *inode) apply(e edit) {
	grow := func(n int64) {
		if int64(len(i.content)) < n {
			for b := int64(len(i.content)+4095) / 4096; b < (n+4095)/4096; b++ {
				i.holes[b] = true
			}
			i.content = append(i.content, make([]byte, n-int64(len(i.content)))...)
		}
	}
	switch {
	case e.n < 0:
		grow(e.off)
		i.content = i.content[:e.off:e.off]
	case e.data == nil:
		end := min(e.off+e.n, int64(len(i.content)))
		for at := e.off; at < end; at += 4096 {
			clear(i.content[at:min(at+4096, end)])
			i.holes[at/4096] = true
		}
	default:
		grow(e.off + int64(len(e.data)))
		copy(i.content[e.off:], e.data)
		for b := e.off / 4096; b <= (e.off+int64(len(e.data))-1)/4096; b++ {
			delete(i.holes, b)
		}
	}
}

func (i *inode) allocated() (n int64) {
	for b := range int64(len(i.content)+4095) / 4096 {
		if !i.holes[b] {
			n += 4096
		}
	}
	return n
}

type memFile struct {
	d *memDisk
	i *inode
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if f.d.before != nil {
		if err := f.d.before("read", f.i.name); err != nil {
			return 0, err
		}
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if off >= int64(len(f.i.content)) {
		return 0, io.EOF
	}
	n := copy(p, f.i.content[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) read(p []byte, off int64) (int, error)     { return f.ReadAt(p, off) }
func (f *memFile) readDisk(p []byte, off int64) (int, error) { return f.ReadAt(p, off) }

func (f *memFile) edit(op string, e edit) error {
	if err := f.d.do(op, f.i.name); err != nil {
		return err
	}
	if free, _, _ := f.d.free(); free < int64(len(e.data)) {
		return unix.ENOSPC
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.i.unsynced = append(f.i.unsynced, e)
	f.i.apply(e)
	return nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.edit("write", edit{off: off, data: slices.Clone(p)}); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *memFile) Truncate(size int64) error {
	return f.edit("truncate", edit{off: size, n: -1})
}

func (f *memFile) punch(off, n int64) error { return f.edit("punch", edit{off: off, n: n}) }

func (f *memFile) size() (size, allocated int64, err error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.i.content)), f.i.allocated(), nil
}

func (f *memFile) sync() error {
	if err := f.d.do("fdatasync", f.i.name); err != nil {
		return err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.i.synced, f.i.unsynced = slices.Clone(f.i.content), nil
	return nil
}

func (f *memFile) Close() error { return nil }
