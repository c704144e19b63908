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
func publish(path string, data []byte) (err error) {
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
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
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
