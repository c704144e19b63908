package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// dataVersion is what DATA/version says. It changes when an older Brisk could
// not work with the directory any more.
const dataVersion = "brisk data 2\n"

// prepareData makes the data directory, or makes sure that it is one that this
// Brisk can use. Precondition: nothing; it runs before the lock is held.
func prepareData(p Paths) error {
	if ours, err := isOurs(p); ours || err != nil {
		return err
	}
	if err := os.MkdirAll(p.Data, 0o700); err != nil {
		return store.DiskError(err, "create data directory", p.Data)
	}
	if err := refuseForeign(p.Data); err != nil {
		if ours, _ := isOurs(p); ours { // what is in it is another server's that starts now, too
			return nil
		}
		return err
	}
	if err := os.Chmod(p.Data, 0o700); err != nil {
		return store.DiskError(err, "close to others", p.Data)
	}
	return store.DiskError(writeVersion(p.Data), "mark data directory", p.Data)
}

// isOurs reports whether a directory is marked as Brisk's, of this format or the
// one before (migrateData): it is
// closed to others then. Another format is an error.
func isOurs(p Paths) (bool, error) {
	b, err := os.ReadFile(filepath.Join(p.Data, "version"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fault.Wrap(err, "read", filepath.Join(p.Data, "version"))
	case string(b) != dataVersion && string(b) != dataVersion1:
		return false, fault.New(fault.Machine, "%s has the format %q, this Brisk knows %q", p.Data, strings.TrimSpace(string(b)), strings.TrimSpace(dataVersion)).
			WithHint("Use the Brisk that made it, or another directory with --data.")
	}
	return true, store.DiskError(os.Chmod(p.Data, 0o700), "close to others", p.Data)
}

// refuseForeign keeps Brisk from settling in a directory that is somebody's.
func refuseForeign(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fault.Wrap(err, "read data directory", dir)
	}
	for _, e := range entries {
		switch n := e.Name(); {
		case n == "lock", n == "log", n == "lost+found", strings.HasPrefix(n, ".version-"):
		default:
			return fault.New(fault.Invalid, "%s is not Brisk's and not empty: there is %s in it", dir, n).
				WithHint("Name a directory of its own with --data.")
		}
	}
	return nil
}

func writeVersion(dir string) error {
	return writeDurably(filepath.Join(dir, "version"), []byte(dataVersion))
}

// writeDurably makes a small file, or replaces it, in one step that survives.
func writeDurably(path string, b []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(b); err != nil {
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

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
