package blobs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Sweep removes blobs that keep does not want and that nobody has put, or asked
// Has for, since before: a client that was told that a blob is there may name it
// for so long. It returns how many went, with their bytes; dry only counts.
func (s *Store) Sweep(before time.Time, keep func(workspace, ref string) bool, dry bool) (n int, bytes int64, err error) {
	found, err := filepath.Glob(filepath.Join(s.root, "*", "sha256", "??", "*"))
	if err != nil {
		return 0, 0, fault.Wrap(err, "sweep blob store", s.root)
	}
	for _, path := range found {
		workspace, ref := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(path)))), "sha256:"+filepath.Base(path)
		if !refPattern.MatchString(ref) || keep(workspace, ref) {
			continue
		}
		size, err := s.drop(path, before, dry)
		if err != nil {
			return n, bytes, fault.Wrap(err, "sweep blob store", path)
		}
		if size >= 0 {
			n, bytes = n+1, bytes+size
		}
	}
	return n, bytes, nil
}

// drop removes a file unless it was used since before, and returns its size, or -1.
func (s *Store) drop(path string, before time.Time, dry bool) (int64, error) {
	s.using.Lock()
	defer s.using.Unlock()
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return -1, nil
	case err != nil:
		return -1, err
	case !st.ModTime().Before(before):
		return -1, nil
	case dry:
		return st.Size(), nil
	}
	return st.Size(), os.Remove(path)
}
