package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Temporary files and directories carry a lock while their writer lives, so that
// those of crashed ones can be told apart, and removed, at any time.

// createTemp makes a locked temporary file in dir; sweep spares it until it is closed.
func createTemp(dir string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(dir, "new-*")
		if err != nil {
			return nil, err
		}
		ours, err := claim(f)
		if ours {
			return f, nil
		}
		f.Close()
		if err != nil {
			os.Remove(f.Name())
			return nil, err
		}
	}
}

// createTempDir makes a locked temporary directory in dir; sweep spares it, and
// what is in it, until lock is closed.
func createTempDir(dir string) (path string, lock *os.File, err error) {
	for {
		path, err = os.MkdirTemp(dir, "new-*")
		if err != nil {
			return "", nil, err
		}
		lock, err = os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			var ours bool
			if ours, err = claim(lock); ours {
				return path, lock, nil
			}
			lock.Close()
		}
		if err != nil {
			os.Remove(path)
			return "", nil, err
		}
	}
}

// claim locks what was made just now, and says whether it is still there: until it has
// its lock, a sweep (another process may open the same directory) takes it for a dead
// writer's.
func claim(f *os.File) (ours bool, err error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil // it is being swept
		}
		return false, err
	}
	locked, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(locked, named), ignoreMissing(err)
}

// sweep removes the temporary files and directories of writers that are gone.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		f, err := os.Open(path)
		if err != nil {
			continue // finished just now
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			os.RemoveAll(path)
		}
		f.Close()
	}
	return nil
}
