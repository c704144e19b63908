// Package memo remembers, durably, which image a piece of work made, so that
// equal work need not be done again: a step of a build, the import of an archive.
//
// A Memo is a directory with one small file for each piece of work, named by the
// digest of everything that its result depends on, the workspace included.
// Choosing that digest is the caller's business. Losing a memo costs time and
// nothing else, so what is damaged counts as unknown, and so does a result that
// is no longer whole in the store: doing the work again is how damage is mended.
// docs/format/memo.md has the format.
//
// Safe for concurrent use. Nothing blocks but on the disk and the origin.
package memo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// Memo is a directory of results.
type Memo struct {
	dir string
}

const (
	magic  = "brisk-memo"
	format = 1
	// tempPrefix marks files that are being written; no digest begins so.
	tempPrefix = ".new-"
)

// Open opens a memo, makes its directory if there is none, and removes what a
// process that died was writing.
func Open(dir string) (*Memo, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, store.DiskError(err, "open memo", dir)
	}
	left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	if err != nil {
		return nil, fault.Wrap(err, "open memo", dir)
	}
	for _, f := range left {
		os.Remove(f)
	}
	return &Memo{dir}, nil
}

// encode writes a result.
func encode(work, made store.Digest) []byte {
	line := fmt.Sprintf("%s %d %s %s", magic, format, work, made)
	return fmt.Appendf(nil, "%s %s\n", line, store.Sum([]byte(line)))
}

// decode reads what encode wrote for this work; anything else is Corrupt.
func decode(work store.Digest, b []byte) (store.Digest, error) {
	fields := strings.Fields(string(b))
	if len(fields) == 5 {
		made, err := store.ParseDigest(fields[3])
		if err == nil && string(encode(work, made)) == string(b) {
			return made, nil
		}
	}
	return store.Digest{}, fault.New(fault.Corrupt, "not a memo of version %d, or damaged", format)
}

func (m *Memo) path(work store.Digest) string { return filepath.Join(m.dir, work.String()) }

// Get gives the image that a piece of work made, and whether that is known.
func (m *Memo) Get(work store.Digest) (store.Digest, bool, error) {
	b, err := os.ReadFile(m.path(work))
	if errors.Is(err, fs.ErrNotExist) {
		return store.Digest{}, false, nil
	}
	if err != nil {
		return store.Digest{}, false, fault.Wrap(err, "read memo", work.Short())
	}
	made, err := decode(work, b)
	if err != nil {
		return store.Digest{}, false, m.Drop(work)
	}
	return made, true, nil
}

// Drop forgets a piece of work; that it is not known is no error.
func (m *Memo) Drop(work store.Digest) error {
	if err := os.Remove(m.path(work)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "drop memo", work.Short())
	}
	return nil
}

// Recall gives the image that a piece of work made, or nil if that is not known,
// or not all of the image is in the store any more.
func (m *Memo) Recall(ctx context.Context, images *image.Images, workspace string, work store.Digest) (*image.Image, error) {
	d, known, err := m.Get(work)
	if err != nil || !known {
		return nil, err
	}
	img, err := whole(ctx, images, image.Ref{Workspace: workspace, Name: d.String()})
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) {
		return nil, m.Drop(work)
	}
	return img, err
}

// whole gives an image of whose parts good copies are known to be in the store.
func whole(ctx context.Context, images *image.Images, ref image.Ref) (*image.Image, error) {
	img, err := images.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if _, err := img.MetaPath(ctx); err != nil {
		return nil, err
	}
	blocks, err := img.Blocks(ctx)
	if err != nil {
		return nil, err
	}
	chunks, err := images.Store(ref.Workspace)
	if err != nil {
		return nil, err
	}
	for _, c := range blocks.Chunks() {
		if !chunks.Has(c.Digest) {
			// The work is done again, which mends only damage that is known, and where
			// one chunk is damaged others are likely to be.
			if err := chunks.Verify(ctx, blocks.Chunks()); err != nil {
				return nil, err
			}
			return nil, fault.New(fault.Corrupt, "chunk %s is missing", c)
		}
	}
	return img, ctx.Err()
}

// Sweep forgets what made images that keep does not know, and what is damaged, and
// returns how much that was; dry only counts.
func (m *Memo) Sweep(keep func(made store.Digest) bool, dry bool) (n int, err error) {
	files, err := os.ReadDir(m.dir)
	if err != nil {
		return 0, fault.Wrap(err, "sweep memo", m.dir)
	}
	for _, f := range files {
		work, err := store.ParseDigest(f.Name())
		if err != nil {
			continue // being written, or not ours
		}
		b, err := os.ReadFile(m.path(work))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return n, fault.Wrap(err, "sweep memo", work.Short())
		}
		if made, err := decode(work, b); err == nil && keep(made) {
			continue
		}
		if n++; dry {
			continue
		}
		if err := m.Drop(work); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Put remembers which image a piece of work made, in place of what was known. It
// survives a power loss when Put has returned.
func (m *Memo) Put(work, made store.Digest) (err error) {
	defer func() { err = store.DiskError(err, "write memo", m.dir) }()
	f, err := os.CreateTemp(m.dir, tempPrefix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(encode(work, made))
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), m.path(work))
	}
	if err != nil {
		return err
	}
	d, err := os.Open(m.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
