// Package blobs keeps content that clients upload before they name it: tars of
// code and of files to add to an image, pickled functions.
//
// A blob is named by the SHA-256 of its bytes, because that is what a client in
// Python has without a library. It is there completely or not at all, durable
// once Put has returned, and never changes; Sweep removes what nobody names. Workspaces do not see each other's.
//
// On disk: ROOT/<workspace>/sha256/<first two digits>/<64 digits>, read-only.
// What begins with ".tmp-" is an upload that a crash cut short; Open removes it.
package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// MaxSize is the most bytes in a blob.
const MaxSize = 8 << 30

const tempPrefix = ".tmp-"

// Store is a directory of blobs. Safe for concurrent use.
type Store struct {
	root    string
	maxSize int64
	using   sync.Mutex // held while a blob is said to be there, or removed
}

// Open opens the store at root, making the directory, and removes unfinished uploads.
func Open(root string) (*Store, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fault.Wrap(err, "open blob store", root)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasPrefix(d.Name(), tempPrefix) {
			err = os.Remove(path)
		}
		return err
	})
	if err != nil {
		return nil, fault.Wrap(err, "sweep blob store", root)
	}
	return &Store{root: root, maxSize: MaxSize}, nil
}

// Has reports whether a blob is there. If so, it counts as used now (Sweep).
func (s *Store) Has(workspace, ref string) (bool, error) {
	path, err := s.path(workspace, ref)
	if err != nil {
		return false, err
	}
	s.using.Lock()
	defer s.using.Unlock()
	now := time.Now()
	err = os.Chtimes(path, now, now)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, fault.Wrap(err, "look for", ref)
}

// Open opens a blob for reading; the caller closes it. One that is not there is
// of class NotFound.
func (s *Store) Open(workspace, ref string) (*os.File, error) {
	path, err := s.path(workspace, ref)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "there is no blob %s; it must be uploaded first", ref)
	}
	return f, fault.Wrap(err, "open blob", ref)
}

// Put stores what r gives under ref, if its digest is that.
func (s *Store) Put(ctx context.Context, workspace, ref string, r io.Reader) error {
	path, err := s.path(workspace, ref)
	if err != nil {
		return err
	}
	if err := s.put(ctx, path, ref, r); err != nil {
		return fault.Wrap(err, "store", ref)
	}
	return nil
}

func (s *Store) put(ctx context.Context, path, ref string, r io.Reader) (err error) {
	dir := filepath.Dir(path)
	if err := makeDirs(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, tempPrefix)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close() // a second close does nothing
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	sum := sha256.New()
	n, err := copyUpTo(ctx, f, sum, r, s.maxSize)
	if err != nil {
		return err
	}
	if n > s.maxSize {
		return fault.New(fault.Invalid, "larger than the limit of %d bytes", s.maxSize)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != ref {
		return fault.New(fault.Invalid, "the content's digest is %s", got)
	}
	if err := f.Chmod(0o400); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// copyUpTo copies at most one byte more than most to f and h.
func copyUpTo(ctx context.Context, f *os.File, h hash.Hash, r io.Reader, most int64) (int64, error) {
	buf := make([]byte, 256<<10)
	var n int64
	for n <= most {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		m, err := r.Read(buf[:min(int64(len(buf)), most+1-n)])
		n += int64(m)
		h.Write(buf[:m])
		if _, werr := f.Write(buf[:m]); werr != nil {
			return n, werr
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return n, &fault.Error{Class: fault.Cancelled, Op: "read the upload", Err: err}
		}
	}
	return n, nil
}

var (
	refPattern       = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	workspacePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
)

func (s *Store) path(workspace, ref string) (string, error) {
	if !refPattern.MatchString(ref) {
		return "", fault.New(fault.Invalid, "%q names no blob: want sha256: and 64 hexadecimal digits", ref)
	}
	if !workspacePattern.MatchString(workspace) {
		return "", fault.New(fault.Invalid, "%q names no workspace", workspace)
	}
	digits := strings.TrimPrefix(ref, "sha256:")
	return filepath.Join(s.root, workspace, "sha256", digits[:2], digits), nil
}

// makeDirs is MkdirAll whose every new name survives a power cut.
func makeDirs(dir string) error {
	err := os.Mkdir(dir, 0o700)
	switch {
	case err == nil:
		return syncDir(filepath.Dir(dir))
	case errors.Is(err, fs.ErrExist):
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := makeDirs(filepath.Dir(dir)); err != nil {
		return err
	}
	return makeDirs(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
