package function

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Limits of a function's code: it is source, not data.
const (
	maxCodeFiles = 100_000
	maxCodeBytes = 1 << 30
)

// Blobs gives what clients of a workspace have uploaded, by "sha256:HEX". NotFound
// if they have not.
type Blobs interface {
	Open(workspace, id string) (*os.File, error)
}

// Code keeps functions' code as directories that sandboxes bind read-only, each
// unpacked once from its tar. A directory appears whole or not at all, and one that
// an earlier process has left is compared with its tar before its first use: the
// disk may have lost or changed it, and a function would do something else.
type Code struct {
	dir     string
	blobs   Blobs
	mu      sync.Mutex      // one unpacking at a time: it is short, and two of one tar would collide
	checked map[string]bool // directories that this process has unpacked or compared
}

// emptyCode is the directory of functions without code.
const emptyCode = "empty"

// OpenCode keeps code in dir, and sweeps what was left unfinished.
func OpenCode(dir string, blobs Blobs) (*Code, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "open code in", dir)
	}
	left, err := filepath.Glob(filepath.Join(dir, "tmp-*"))
	if err != nil {
		return nil, fault.Wrap(err, "sweep", dir)
	}
	for _, l := range left {
		if err := os.RemoveAll(l); err != nil {
			return nil, fault.Wrap(err, "sweep", l)
		}
	}
	return &Code{dir: dir, blobs: blobs, checked: map[string]bool{}}, nil
}

// Dir is the directory with the code of a workspace's tar; "" gives an empty one.
func (c *Code) Dir(workspace, id string) (string, error) {
	name := emptyCode
	if id != "" {
		name = strings.TrimPrefix(id, "sha256:")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	dir := filepath.Join(c.dir, workspace, name)
	if _, err := os.Stat(dir); err == nil {
		if c.checked[dir] || !c.damaged(workspace, id, dir) {
			c.checked[dir] = true
			now := time.Now()
			return dir, fault.Wrap(os.Chtimes(dir, now, now), "use code", dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return "", fault.Wrap(err, "remove damaged code", dir)
		}
	}
	tmp, err := os.MkdirTemp(c.dir, "tmp-")
	if err != nil {
		return "", fault.Wrap(err, "unpack code into", c.dir)
	}
	if err := c.unpack(workspace, id, tmp); err != nil {
		_ = os.RemoveAll(tmp)
		return "", err
	}
	err = os.MkdirAll(filepath.Dir(dir), 0o700)
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if err != nil {
		_ = os.RemoveAll(tmp)
		return "", fault.Wrap(err, "publish code", dir)
	}
	c.checked[dir] = true
	return dir, nil
}

// damaged reports whether a directory is not what its tar says. Without the tar, or
// if that is damaged itself, there is nothing better than the directory.
func (c *Code) damaged(workspace, id, dir string) bool {
	if id == "" {
		return false
	}
	r, err := c.blobs.Open(workspace, id)
	if err != nil {
		return false
	}
	defer r.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil || "sha256:"+hex.EncodeToString(sum.Sum(nil)) != id {
		return false
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return false
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return true
	}
	defer root.Close()
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err != nil {
			return !errors.Is(err, io.EOF)
		}
		if h.Typeflag == tar.TypeReg && !holds(root, filepath.Clean(h.Name), t) {
			return true
		}
	}
}

// holds reports whether a file has what r gives.
func holds(root *os.Root, name string, r io.Reader) bool {
	want, err := io.ReadAll(r)
	if err != nil {
		return false
	}
	have, err := root.ReadFile(name)
	return err == nil && bytes.Equal(have, want)
}

func (c *Code) unpack(workspace, id, dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil { // any user inside reads it
		return fault.Wrap(err, "unpack code into", dir)
	}
	if id == "" {
		return nil
	}
	r, err := c.blobs.Open(workspace, id)
	if err != nil {
		return err
	}
	defer r.Close()
	root, err := os.OpenRoot(dir) // resolves every name inside, whatever the tar says
	if err != nil {
		return fault.Wrap(err, "unpack code into", dir)
	}
	defer root.Close()
	return unpackTar(tar.NewReader(r), root)
}

// unpackTar takes directories and regular files only: code has no use for more.
func unpackTar(t *tar.Reader, root *os.Root) error {
	var files, bytes int64
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fault.New(fault.Invalid, "code: not a readable tar: %v", err)
		}
		files, bytes = files+1, bytes+h.Size
		if files > maxCodeFiles || bytes > maxCodeBytes {
			return fault.New(fault.Invalid, "code: more than %d files or %d MiB", maxCodeFiles, maxCodeBytes>>20).
				WithHint("Put data into the image with add_local_dir.")
		}
		name := filepath.Clean(h.Name)
		if !filepath.IsLocal(name) {
			return fault.New(fault.Invalid, "code: the name %q leads out of its directory", h.Name)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = unpackFile(t, root, name)
		default:
			return fault.New(fault.Invalid, "code: %q is neither a file nor a directory", h.Name)
		}
		if err != nil {
			return fault.Wrap(err, "unpack code", name)
		}
	}
}

func unpackFile(r io.Reader, root *os.Root, name string) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
