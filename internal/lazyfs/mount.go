package lazyfs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Mount is one user's hold on a mounted image.
type Mount struct {
	// Path is the root of the image's files: read-only, nodev, nosuid.
	Path string
	// Fresh means that this call has made the mount: the kernel had nothing of the image
	// in its page cache.
	Fresh bool

	fs   *FS
	m    *mount
	once sync.Once
}

// mount is a kernel mount. Its fields but ready are guarded by FS.mu.
type mount struct {
	id     string
	file   *file // nil: a native mount
	refs   int
	unused time.Time     // since when refs is 0
	ready  chan struct{} // closed when mounted, or failed, or, of one being unmounted, gone
	err    error         // of mounting; read after ready
	going  bool          // being unmounted
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Mount mounts an image, or takes a further hold on the mount that it has. It
// reads nothing of the image's data. Errors: fault.Invalid, Corrupt (metadata
// that the kernel refuses), Machine, and ctx's.
func (f *FS) Mount(ctx context.Context, img Image) (*Mount, error) {
	if err := img.check(); err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			return nil, fault.New(fault.Cancelled, "the image mounts are being closed")
		}
		m := f.mounts[img.ID]
		if m == nil {
			m = &mount{id: img.ID, refs: 1, ready: make(chan struct{})}
			if !img.native() {
				var err error
				if m.file, err = f.files.use(img.ID, &img); err != nil {
					f.mu.Unlock()
					return nil, err
				}
			}
			f.mounts[img.ID] = m
			f.mu.Unlock()
			return f.finish(m, img)
		}
		if !m.going {
			m.refs++
			if m.file != nil {
				m.file.learn(&img)
			}
		}
		going, ready := m.going, m.ready
		f.mu.Unlock()
		select {
		case <-ready:
		case <-ctx.Done():
			if !going {
				f.release(m)
			}
			return nil, ctx.Err()
		}
		switch {
		case going:
			continue // it is gone, or could not go: look again
		case m.err != nil:
			return nil, m.err
		}
		return &Mount{Path: imagePath(f.o.Dir, img.ID), fs: f, m: m}, nil
	}
}

// finish makes the kernel mount and tells those who wait for it.
func (f *FS) finish(m *mount, img Image) (*Mount, error) {
	path := imagePath(f.o.Dir, img.ID)
	m.err = f.mountKernel(img, path)
	if m.err != nil {
		f.mu.Lock()
		delete(f.mounts, img.ID)
		f.mu.Unlock()
		f.dropped(m)
	}
	close(m.ready)
	if m.err != nil {
		return nil, m.err
	}
	return &Mount{Path: path, Fresh: true, fs: f, m: m}, nil
}

func (f *FS) mountKernel(img Image, path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fault.Wrap(err, "create", path)
	}
	if _, err := os.Stat(img.Meta); err != nil {
		return fault.Wrap(err, "find metadata of image", img.ID)
	}
	data, where := fusePath(f.o.Dir, img.ID), apart
	if img.native() {
		data, where = img.Device, func(fn func() error) error { return fn() } // nobody has to answer
	}
	f.mu.Lock()
	loops := f.loops
	f.mu.Unlock()
	err := errNoFiles
	tried := !loops && (!img.native() || direct(data))
	if tried {
		err = where(func() error { return mountFiles(img.Meta, data, path) })
	}
	if err == errNoFiles {
		err = where(func() error { return mountLoops(img.Meta, data, path) })
		if err == nil && tried {
			f.o.Log.Info("this kernel mounts images by loop devices")
			f.mu.Lock()
			f.loops = true
			f.mu.Unlock()
		}
	}
	if err != nil {
		return err
	}
	ahead := f.o.ReadAhead
	if img.native() {
		ahead = max(ahead, readAheadOf(img.Device))
	}
	if err := setReadAhead(path, ahead); err != nil {
		f.server.log.say(slog.LevelWarn, "", "read-ahead", "read-ahead of images stays at the kernel's default", "error", err)
	}
	return nil
}

// Release gives the hold back; the mount stays for Options.Keep. Further calls
// do nothing.
func (m *Mount) Release() { m.once.Do(func() { m.fs.release(m.m) }) }

func (f *FS) release(m *mount) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.refs--; m.refs == 0 {
		m.unused = time.Now()
	}
}

// dropped lets go of what belongs to a mount that is gone.
func (f *FS) dropped(m *mount) {
	if m.file == nil {
		os.Remove(imagePath(f.o.Dir, m.id)) // what is mounted in other namespaces needs no name here
	} else if f.files.drop(m.file) {
		f.forget(m.file)
	}
}

// Mounted lists the IDs of the images that are mounted, sorted. After a restart
// it has those of the server before, with no hold on them.
func (f *FS) Mounted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := []string{}
	for id, m := range f.mounts {
		select {
		case <-m.ready:
			ids = append(ids, id)
		default:
		}
	}
	slices.Sort(ids)
	return ids
}

// Sweep unmounts every image that nobody holds, and says how many. One that is
// in use all the same (a shell stands in it) stays for the next time.
func (f *FS) Sweep() int { return f.sweep(time.Now()) }

func (f *FS) sweep(unusedBefore time.Time) (n int) {
	f.mu.Lock()
	var old []*mount
	for _, m := range f.mounts {
		if m.refs == 0 && !m.going && !f.closed && !m.unused.After(unusedBefore) {
			m.going, m.ready = true, make(chan struct{})
			old = append(old, m)
		}
	}
	f.mu.Unlock()
	for _, m := range old {
		err := unix.Unmount(imagePath(f.o.Dir, m.id), 0)
		f.mu.Lock()
		if gone := err == nil || err == unix.EINVAL || err == unix.ENOENT; gone {
			delete(f.mounts, m.id)
			n++
		} else {
			m.going, m.unused = false, time.Now()
			f.mu.Unlock()
			close(m.ready)
			continue
		}
		f.mu.Unlock()
		f.dropped(m)
		close(m.ready)
	}
	return n
}
