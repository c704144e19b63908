package build

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Bounds of the context of a Dockerfile: beyond what anybody waits for.
const (
	maxContextFiles = 2_000_000
	maxContextBytes = 64 << 30
)

// unpack puts an uploaded tar into a directory for a Dockerfile's builder.
func (b *Builder) unpack(ctx context.Context, workspace, id, dir string) error {
	root, err := os.OpenRoot(dir) // resolves every name inside, whatever the tar says
	if err != nil {
		return store.DiskError(err, "unpack into", dir)
	}
	defer root.Close()
	return b.readBlob(ctx, workspace, id, func(r io.Reader) error {
		sum := &checked{ctx, r, sha256.New()}
		if err := unpackContext(tar.NewReader(sum), root); err != nil {
			return store.DiskError(err, "unpack into", dir)
		}
		if err := drained(sum); err != nil {
			return err
		}
		return sum.is(id)
	})
}

// checked digests what is read through it, and ends with its context.
type checked struct {
	ctx context.Context
	r   io.Reader
	sum hash.Hash
}

func (c *checked) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	return n, err
}

// is says that what was read has the digest that it should have.
func (c *checked) is(id string) error {
	if got := "sha256:" + hex.EncodeToString(c.sum.Sum(nil)); got != id {
		return fault.New(fault.Corrupt, "its content has the digest %s", got).WithHint("Build the image again: the files are uploaded anew.")
	}
	return nil
}

// unpackContext takes directories, regular files and symbolic links, with their modes
// and times, as the caller's own.
func unpackContext(t *tar.Reader, root *os.Root) error {
	var files, bytes int64
	var dirs []*tar.Header // whose times count when all is in them
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fault.New(fault.Invalid, "the context is not a readable tar: %v", err)
		}
		files, bytes = files+1, bytes+h.Size
		if files > maxContextFiles || bytes > maxContextBytes {
			return fault.New(fault.Invalid, "the context has more than %d files or %d GiB", maxContextFiles, maxContextBytes>>30).
				WithHint("Leave out what the Dockerfile does not copy: list it in .dockerignore.")
		}
		name := path.Clean(h.Name)
		if !filepath.IsLocal(name) {
			return fault.New(fault.Invalid, "the name %q leads out of the context", h.Name)
		}
		h.Name = name
		if err := unpackEntry(t, h, root); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if h.Typeflag == tar.TypeDir {
			dirs = append(dirs, h)
		}
	}
	for _, h := range dirs {
		if err := settleEntry(h, root); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return nil
}

func unpackEntry(t *tar.Reader, h *tar.Header, root *os.Root) error {
	if err := root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(h.Name, 0o755)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, h.Name)
	case tar.TypeReg:
		f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return err
		}
		return settleEntry(h, root)
	}
	return fault.New(fault.Invalid, "it is neither a file, a directory nor a symbolic link")
}

func settleEntry(h *tar.Header, root *os.Root) error {
	if err := root.Chmod(h.Name, h.FileInfo().Mode().Perm()); err != nil {
		return err
	}
	return root.Chtimes(h.Name, h.ModTime, h.ModTime)
}
