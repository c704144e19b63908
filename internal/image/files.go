package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"brisk.dev/brisk/internal/store"
)

// tempPrefix marks files that are being written. Nothing else begins so.
const tempPrefix = ".new-"

// publish makes data the content of path: all of it or, after a crash at any
// moment, what was there before; durable when it returns.
func publish(path string, data []byte) error {
	if err := write(path, data, (*os.File).Sync); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// keep makes data the content of path, as a copy of what the origin has: it may be lost,
// or be another than it was, after a power loss. Starts wait for these copies, and a
// sync waits for all that the disk has to do for the chunks that arrive meanwhile.
func keep(path string, data []byte) error {
	return write(path, data, func(*os.File) error { return nil })
}

// write makes data the content of path, which nobody sees before done has returned.
func write(path string, data []byte, done func(*os.File) error) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return store.DiskError(err, "write", path)
	}
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return store.DiskError(err, "write", path)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
			err = store.DiskError(err, "write", path)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := done(f); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// unpublish removes a file durably; that there is none is no error.
func unpublish(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncDir(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// sweep removes what was being written to a directory when a process died.
func sweep(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), tempPrefix) {
			os.Remove(filepath.Join(dir, f.Name()))
		}
	}
	return err
}
