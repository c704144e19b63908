// Package layers remembers what layers of container images say, so that a layer
// that has been read once need not be fetched, decompressed and hashed again.
//
// A List is one layer: its entries (image.LayerEntry) in order, with the digests of
// the chunks in the place of the files' content. It is some 60 bytes a file, in a file of
// its own. A Writer makes one; Layers is a directory that keeps them, per
// workspace and by the digest of the layer's uncompressed tar.
//
// It is kept per layer and not per chain of layers. A chain would save the
// applying of entries, which takes a microsecond each, and in return would know
// nothing of a layer on another base, of an image whose lowest layer was rebuilt,
// and would keep a whole image for every prefix of every image.
//
// A List refers to chunks and keeps none: whoever uses one asks the store for
// each chunk, and drops a list that has become useless. So lists are in nobody's
// way when garbage is collected. Losing one costs time and nothing else; the
// directory is bounded, and what was not used for longest goes first.
// docs/format/layer.md has the format.
//
// Layers is safe for concurrent use; a Writer and a List belong to one goroutine
// at a time. They block on the disk only.
package layers

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// DefaultLimit is how many bytes of lists are kept: those of about ten million files.
const DefaultLimit = 512 << 20

// tempPrefix marks files that are being written.
const tempPrefix = ".new-"

// ID names a layer: the SHA-256 of its uncompressed tar.
type ID [32]byte

// Layers is a directory of lists.
type Layers struct {
	dir   string
	limit int64

	mu sync.Mutex // held while the directory is trimmed
}

// Open opens a directory of lists, makes it if there is none, and removes what a
// process that died was writing. It is of one process at a time.
func Open(dir string, limit int64) (*Layers, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, store.DiskError(err, "open layers", dir)
	}
	left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	if err != nil {
		return nil, fault.Wrap(err, "open layers", dir)
	}
	for _, f := range left {
		os.Remove(f)
	}
	return &Layers{dir: dir, limit: limit}, nil
}

func (l *Layers) path(workspace string, id ID) string {
	return filepath.Join(l.dir, workspace, store.Digest(id).String())
}

// Get opens the list of a layer, or gives nil if it is not known. A damaged one is
// removed and is not known.
func (l *Layers) Get(workspace string, id ID) (*List, error) {
	path := l.path(workspace, id)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "open the list of layer", store.Digest(id).Short())
	}
	list := &List{file: f}
	if err := list.verify(); err != nil {
		f.Close()
		if !fault.Is(err, fault.Corrupt) {
			return nil, fault.Wrap(err, "read the list of layer", store.Digest(id).Short())
		}
		return nil, l.Drop(workspace, id)
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // it may have gone meanwhile, which is no matter
	return list, nil
}

// Drop forgets a layer; that it is not known is no error.
func (l *Layers) Drop(workspace string, id ID) error {
	if err := os.Remove(l.path(workspace, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "drop the list of layer", store.Digest(id).Short())
	}
	return nil
}

// NewWriter begins a list of a layer, to be given to Keep or closed.
func (l *Layers) NewWriter() (*Writer, error) { return newWriter(l.dir) }

// Keep makes a finished list the one of its layer. The list stays open. It is not
// synced to the disk: what a power loss leaves of it is found damaged.
func (l *Layers) Keep(workspace string, id ID, list *List) error {
	path := l.path(workspace, id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return store.DiskError(err, "keep a list in", l.dir)
	}
	if err := os.Rename(list.temp, path); err != nil {
		return store.DiskError(err, "keep a list in", l.dir)
	}
	list.temp = ""
	return l.trim()
}

// trim removes the lists that were not used for longest while they are too many.
func (l *Layers) trim() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	type kept struct {
		path string
		used time.Time
		size int64
	}
	var all []kept
	var total int64
	err := filepath.WalkDir(l.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.HasPrefix(e.Name(), tempPrefix) {
			return ignoreMissing(err)
		}
		info, err := e.Info()
		if err == nil {
			all = append(all, kept{path, info.ModTime(), info.Size()})
			total += info.Size()
		}
		return ignoreMissing(err)
	})
	if err != nil {
		return fault.Wrap(err, "trim layers", l.dir)
	}
	slices.SortFunc(all, func(a, b kept) int {
		return cmp.Or(a.used.Compare(b.used), strings.Compare(a.path, b.path))
	})
	for _, k := range all {
		if total <= l.limit {
			break
		}
		if err := ignoreMissing(os.Remove(k.path)); err != nil {
			return fault.Wrap(err, "trim layers", l.dir)
		}
		total -= k.size
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
