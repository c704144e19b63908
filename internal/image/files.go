package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// tempPrefix marks files that are being written. Nothing else begins so.
const tempPrefix = ".new-"

// publish makes data the content of path: all of it or, after a crash at any
// moment, what was there before; durable when it returns.
func publish(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return store.DiskError(err, "write", path)
	}
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return store.DiskError(err, "write", path)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
			err = store.DiskError(err, "write", path)
		}
	}()
	if _, err := f.Write(data); err != nil {
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

// unpublish removes a file durably; that there is none is no error.
func unpublish(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncDir(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// sweep removes what was being written to a directory when a process died.
func sweep(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), tempPrefix) {
			os.Remove(filepath.Join(dir, f.Name()))
		}
	}
	return err
}

// Manifests at the origin, where other machines find them.
const originRoot = "manifests/"

func originPrefix(workspace string) string { return originRoot + workspace + "/" }

func originKey(workspace string, d store.Digest) string { return originPrefix(workspace) + d.String() }

func (s *Images) putOrigin(ctx context.Context, workspace string, d store.Digest, b []byte, replace bool) error {
	if s.opt.Origin == nil {
		return nil
	}
	key := originKey(workspace, d)
	if replace {
		// If we die before the Put, Open makes up for it.
		if err := s.opt.Origin.Delete(ctx, key); err != nil {
			return err
		}
	}
	return s.opt.Origin.Put(ctx, key, bytes.NewReader(b))
}

// parseAs reads the manifest of the image d.
func parseAs(b []byte, d store.Digest) (*Manifest, error) {
	m, err := ParseManifest(b)
	if err == nil && m.Digest() != d {
		err = fault.New(fault.Corrupt, "it is the manifest of another image, %s", m.Digest().Short())
	}
	return m, err
}

// readManifest reads the local manifest of an image or, if that is missing or
// damaged, the origin's. A damaged one is healed by that; a missing one stays
// missing, since not every image of the origin is one of this machine's.
func (s *Images) readManifest(ctx context.Context, workspace string, d store.Digest) (*Manifest, error) {
	path := s.manifestPath(workspace, d)
	b, err := os.ReadFile(path)
	var m *Manifest
	if err == nil {
		if m, err = parseAs(b, d); err == nil {
			return m, nil
		}
		s.log.Warn("the local copy of a manifest is damaged", "image", d.Short(), "error", err)
	}
	here := err
	if s.opt.Origin == nil {
		return nil, fault.Wrap(here, "read manifest", d.Short())
	}
	b, err = s.getOrigin(ctx, originKey(workspace, d))
	if err == nil {
		m, err = parseAs(b, d)
	}
	switch {
	case err == nil && fault.Is(here, fault.NotFound):
		return m, nil
	case err == nil:
		return m, publish(path, b)
	case fault.Is(err, fault.NotFound) && fault.Is(here, fault.NotFound):
		return nil, fault.Wrap(err, "read manifest", d.Short())
	case fault.Is(err, fault.NotFound):
		err = here // it is damaged here and absent there
	}
	return nil, fault.Wrap(noCopy(err), "read manifest", d.Short())
}

func (s *Images) getOrigin(ctx context.Context, key string) ([]byte, error) {
	b, _, err := s.opt.Origin.Get(ctx, key, maxManifest)
	return b, err
}
