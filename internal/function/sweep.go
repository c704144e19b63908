package function

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Sweep removes the directories of code that keep does not want and that were not
// asked for since before; the rest is unpacked again when it is needed. Nothing may run
// on a directory that keep does not want. It returns how many went, with their bytes; dry only counts.
func (c *Code) Sweep(before time.Time, keep func(workspace, id string) bool, dry bool) (n int, bytes int64, err error) {
	found, err := filepath.Glob(filepath.Join(c.dir, "*", "*"))
	if err != nil {
		return 0, 0, fault.Wrap(err, "sweep code in", c.dir)
	}
	for _, dir := range found {
		workspace, name := filepath.Base(filepath.Dir(dir)), filepath.Base(dir)
		if name == emptyCode || keep(workspace, "sha256:"+name) {
			continue
		}
		size, err := c.drop(dir, before, dry)
		if err != nil {
			return n, bytes, fault.Wrap(err, "sweep code", dir)
		}
		if size >= 0 {
			n, bytes = n+1, bytes+size
		}
	}
	return n, bytes, nil
}

// drop removes a directory unless it was used since before, and returns its size, or -1.
func (c *Code) drop(dir string, before time.Time, dry bool) (size int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return -1, nil
	case err != nil:
		return -1, err
	case !st.ModTime().Before(before):
		return -1, nil
	}
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		i, err := e.Info()
		if err == nil {
			size += i.Size()
		}
		return err
	})
	if err != nil || dry {
		return size, err
	}
	// Aside first: half a directory under its name would be taken for the whole one.
	tmp, err := os.MkdirTemp(c.dir, "tmp-")
	if err != nil {
		return 0, err
	}
	delete(c.checked, dir)
	if err := os.Rename(dir, filepath.Join(tmp, "old")); err != nil {
		return 0, errors.Join(err, os.Remove(tmp))
	}
	return size, os.RemoveAll(tmp)
}
