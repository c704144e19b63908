package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// open opens an object. Whatever becomes of its key meanwhile, the file stays
// as it is.
func (d *DirOrigin) open(ctx context.Context, op, key string) (f *os.File, size int64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	path, err := d.path(key)
	if err != nil {
		return nil, 0, err
	}
	f, err = os.Open(path)
	if err != nil {
		return nil, 0, fault.Wrap(missing(err), op, path)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, 0, fault.Wrap(err, op, path)
	}
	return f, st.Size(), nil
}

// missing turns what a path through a file amounts to into fs.ErrNotExist.
func missing(err error) error {
	if errors.Is(err, unix.ENOTDIR) {
		return fs.ErrNotExist
	}
	return err
}

func endsBefore(path string, end int64) error {
	return &fault.Error{Class: fault.Corrupt, Op: "read", Object: path,
		Err: fmt.Errorf("it ends before byte %d: %w", end, io.ErrUnexpectedEOF)}
}

// ReadAt implements Origin.
func (d *DirOrigin) ReadAt(ctx context.Context, key string, p []byte, off int64) error {
	f, _, err := d.open(ctx, "read", key)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := f.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == io.EOF:
		return endsBefore(f.Name(), off+int64(len(p)))
	}
	return fault.Wrap(err, "read", f.Name())
}

// Open implements Origin.
func (d *DirOrigin) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	f, size, err := d.open(ctx, "read", key)
	if err != nil {
		return nil, err
	}
	if off < 0 || off > 0 && off >= size {
		f.Close()
		return nil, endsBefore(f.Name(), off+1)
	}
	r := contextReader{ctx, io.NewSectionReader(f, off, size-off)}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}

// Get implements Origin.
func (d *DirOrigin) Get(ctx context.Context, key string, max int64) ([]byte, Version, error) {
	f, size, err := d.open(ctx, "read", key)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	if size > max {
		return nil, "", &fault.Error{Class: fault.Corrupt, Op: "read", Object: f.Name(),
			Err: fmt.Errorf("it has %d bytes, more than the %d that may be here", size, max)}
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, "", fault.Wrap(err, "read", f.Name())
	}
	return b, versionOf(b), nil
}

// Size implements Origin.
func (d *DirOrigin) Size(ctx context.Context, key string) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	path, err := d.path(key)
	if err != nil {
		return 0, err
	}
	st, err := os.Lstat(path)
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return 0, fault.Wrap(missing(err), "size", path)
	}
	return st.Size(), nil
}

// List implements Origin.
func (d *DirOrigin) List(ctx context.Context, prefix string, fn func(Object) error) error {
	from := d.root
	if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
		path, err := d.path(prefix[:i])
		if err != nil {
			return err
		}
		from = path
	}
	return d.list(ctx, from, prefix, fn)
}

func (d *DirOrigin) list(ctx context.Context, dir, prefix string, fn func(Object) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(missing(err), fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "list", dir)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		key := filepath.ToSlash(path[len(d.root)+1:])
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir():
			// Down only where the prefix leads.
			if strings.HasPrefix(key+"/", prefix) || strings.HasPrefix(prefix, key+"/") {
				if err := d.list(ctx, path, prefix, fn); err != nil {
					return err
				}
			}
		case e.Type().IsRegular() && strings.HasPrefix(key, prefix):
			st, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fault.Wrap(err, "list", path)
			}
			if err := fn(Object{Key: key, Size: st.Size(), Modified: st.ModTime()}); err != nil {
				return err
			}
		}
	}
	return nil
}
