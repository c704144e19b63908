package store

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// DirOrigin is an Origin in a local directory: each object is a file whose path
// is its key.
//
// An object appears whole and durable, or not at all: it is written and synced
// under a temporary name, linked to its place (which never overwrites) or renamed
// to it (if it is exchanged), and the directory synced. Temporary files carry a
// lock while their writer lives; OpenDir removes those without. Any number of
// processes may use the same directory.
type DirOrigin struct {
	root string
	tmp  string // root/.tmp: no key has a component that begins with a dot

	swaps chan struct{} // one slot: exchanging or deleting, in this process (see lockSwaps)

	made sync.Map // directories (string) whose own names are known to be durable

	step func(name string) error // tests: called after each step of publishing; an error is a crash
}

// errCrash, from a step hook, makes the operation stop as if the process had died.
var errCrash = errors.New("crash")

// OpenDir opens the origin in root, makes it if need be, and sweeps what crashed
// writers left.
func OpenDir(root string) (*DirOrigin, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fault.Wrap(err, "open origin", root)
	}
	d := &DirOrigin{root: root, tmp: filepath.Join(root, ".tmp"), swaps: make(chan struct{}, 1)}
	if err := os.MkdirAll(d.tmp, 0o700); err != nil {
		return nil, DiskError(err, "make origin", root)
	}
	if err := syncDir(filepath.Dir(root)); err != nil {
		return nil, DiskError(err, "make origin", root)
	}
	d.made.Store(root, true)
	if err := sweep(d.tmp); err != nil {
		return nil, fault.Wrap(err, "sweep origin", root)
	}
	return d, nil
}

// Put implements Origin.
func (d *DirOrigin) Put(ctx context.Context, key string, r io.Reader) error {
	path, err := d.path(key)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		// Whoever put it may not have synced its name yet.
		return DiskError(d.syncParent(path), "put", path)
	}
	f, err := createTemp(d.tmp)
	if err != nil {
		return DiskError(err, "put", d.root)
	}
	err = d.fill(ctx, f, r)
	if err == nil {
		err = d.publish(f.Name(), path, false)
	}
	f.Close()
	if !errors.Is(err, errCrash) {
		os.Remove(f.Name())
	}
	return DiskError(err, "put", path)
}

// PutFile does what Put does with a file, which it takes away from path; on the
// same filesystem no byte is copied. With replace, an object that exists, because
// it is damaged, gives way in one step.
func (d *DirOrigin) PutFile(ctx context.Context, key, path string, replace bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	to, err := d.path(key)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fault.Wrap(err, "put", to)
	}
	defer f.Close()
	// The origin's time of an object is that of its being put.
	if err := unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}, unix.AT_EMPTY_PATH); err != nil {
		return DiskError(err, "put", to)
	}
	if err := f.Sync(); err != nil {
		return DiskError(err, "put", to)
	}
	if err := d.at("sync"); err != nil {
		return err
	}
	err = d.publish(path, to, replace)
	if errors.Is(err, unix.EXDEV) {
		if replace {
			if err := d.Delete(ctx, key); err != nil {
				return err
			}
		}
		err = d.Put(ctx, key, f)
	}
	if err == nil {
		os.Remove(path)
	}
	return DiskError(err, "put", to)
}

// fill writes r to a temporary file and syncs it.
func (d *DirOrigin) fill(ctx context.Context, f *os.File, r io.Reader) error {
	if err := d.at("create"); err != nil {
		return err
	}
	// The buffer is larger than a chunk and small against a pack, so that a
	// cancelled upload of a large object stops soon.
	if _, err := io.CopyBuffer(struct{ io.Writer }{f}, contextReader{ctx, r}, make([]byte, 1<<20)); err != nil {
		return err
	}
	if err := d.at("write"); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return d.at("sync")
}

// publish gives the synced file temp its name and makes that durable.
func (d *DirOrigin) publish(temp, path string, replace bool) error {
	if err := d.makeDir(filepath.Dir(path)); err != nil {
		return err
	}
	if err := d.at("mkdir"); err != nil {
		return err
	}
	if replace {
		if err := os.Rename(temp, path); err != nil {
			return err
		}
	} else if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := d.at("link"); err != nil {
		return err
	}
	if err := d.syncParent(path); err != nil {
		return err
	}
	return d.at("syncdir")
}

// makeDir makes dir (below root) with its parents, durably.
func (d *DirOrigin) makeDir(dir string) error {
	if _, ok := d.made.Load(dir); ok {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := d.makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Also if it exists: its maker may have died before this.
	if err := syncDir(parent); err != nil {
		return err
	}
	d.made.Store(dir, true)
	return nil
}

func (d *DirOrigin) syncParent(path string) error { return syncDir(filepath.Dir(path)) }

func (d *DirOrigin) at(step string) error {
	if d.step == nil {
		return nil
	}
	return d.step(step)
}

// Delete implements Origin. A deletion is not synced: after a power loss the
// object may be back, and whoever deletes by reachability deletes it again.
func (d *DirOrigin) Delete(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path, err := d.path(key)
	if err != nil {
		return err
	}
	unlock, err := d.lockSwaps(ctx)
	if err != nil {
		return fault.Wrap(err, "delete", path)
	}
	defer unlock()
	return fault.Wrap(ignoreMissing(os.Remove(path)), "delete", path)
}

// path maps a key to its file.
func (d *DirOrigin) path(key string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return filepath.Join(d.root, filepath.FromSlash(key)), nil
}

// contextReader ends with the context's error once that is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
