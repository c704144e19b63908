package store

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Temporary files and directories carry a lock while their writer lives, so that
// those of crashed ones can be told apart, and removed, at any time.

// createTemp makes a locked temporary file in dir; sweep spares it until it is closed.
func createTemp(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		os.Remove(f.Name())
		return nil, err
	}
	return f, nil
}

// createTempDir makes a locked temporary directory in dir; sweep spares it, and
// what is in it, until lock is closed.
func createTempDir(dir string) (path string, lock *os.File, err error) {
	path, err = os.MkdirTemp(dir, "new-*")
	if err != nil {
		return "", nil, err
	}
	lock, err = os.Open(path)
	if err == nil {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return path, lock, nil
		}
		lock.Close()
	}
	os.Remove(path)
	return "", nil, err
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
