package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/importer"
	"brisk.dev/brisk/internal/image/memo"
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/slab"
)

// machine is an image system with nothing in it yet, as a new machine has it.
type machine struct {
	dir    string
	slab   *slab.Slab
	images *image.Images
	memo   *memo.Memo
	fs     *lazyfs.FS
	closes []func() error
}

// newMachine begins one in the benchmark's directory, so that its slab lies on the
// filesystem of what it is compared with.
func newMachine(o options) (_ *machine, err error) {
	m := &machine{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if m.dir, err = os.MkdirTemp(o.dir, "machine-"); err != nil {
		return nil, err
	}
	m.later(func() error { return os.RemoveAll(m.dir) })
	at := func(name string) string { return filepath.Join(m.dir, name) }
	for _, d := range []string{"run", "temp"} {
		if err := os.Mkdir(at(d), 0o700); err != nil {
			return nil, err
		}
	}
	if m.slab, err = slab.Open(slab.Options{Dir: at("cache")}); err != nil {
		return nil, err
	}
	m.later(m.slab.Close)
	origin, err := store.OpenDir(at("store"))
	if err != nil {
		return nil, err
	}
	keys, err := seal.OpenKeyring(at("keys"))
	if err != nil {
		return nil, err
	}
	stores, err := store.OpenWorkspaces(o.ctx, store.WorkspacesOptions{Dir: at("local"), Origin: origin, Cache: m.slab, Keyring: keys})
	if err != nil {
		return nil, err
	}
	m.later(stores.Close)
	if m.images, err = image.Open(o.ctx, image.Options{Dir: at("images"), Stores: stores}); err != nil {
		return nil, err
	}
	if m.memo, err = memo.Open(at("memo")); err != nil {
		return nil, err
	}
	if m.fs, err = lazyfs.Open(o.ctx, lazyfs.Options{Dir: at("run")}); err != nil {
		return nil, err
	}
	m.later(m.fs.Close)
	return m, nil
}

func (m *machine) later(fn func() error) { m.closes = append(m.closes, fn) }

// close ends the machine and deletes all of it.
func (m *machine) close() error {
	var err error
	for _, v := range slices.Backward(m.closes) {
		err = errors.Join(err, v())
	}
	m.closes = nil
	return err
}

// imports an image of what lies at a path.
func (m *machine) imports(o options, path string) (importer.Report, error) {
	im := &importer.Importer{Images: m.images, Memo: m.memo, TempDir: filepath.Join(m.dir, "temp")}
	return im.Import(o.ctx, importer.Request{Path: path, Workspace: image.DefaultWorkspace, Name: "bench"}, nil)
}

// complete imports an image and has all of its chunks in the slab.
func (m *machine) complete(o options, path string) (*image.Image, error) {
	r, err := m.imports(o, path)
	if err != nil {
		return nil, err
	}
	img, err := m.images.Get(o.ctx, image.Ref{Workspace: image.DefaultWorkspace, Name: r.Digest.String()})
	if err != nil {
		return nil, err
	}
	whole, err := img.Fill(o.ctx, m.slab)
	if err == nil && !whole {
		err = errors.New("the slab has no room for the image")
	}
	return img, err
}

// lazily mounts an image so that its data comes through FUSE.
func (m *machine) lazily(o options, img *image.Image) (string, error) {
	meta, err := img.MetaPath(o.ctx)
	if err != nil {
		return "", err
	}
	blocks, err := img.Blocks(o.ctx)
	if err != nil {
		return "", err
	}
	return m.mount(o, lazyfs.Image{ID: img.Digest.String(), Meta: meta, Blocks: blocks})
}

// natively mounts an image over the slab.
func (m *machine) natively(o options, img *image.Image) (string, error) {
	native, err := img.Native(o.ctx, m.slab)
	if err != nil {
		return "", err
	}
	m.later(func() error { native.Release(); return nil })
	return m.mount(o, lazyfs.Image{ID: native.ID, Meta: native.Meta, Device: native.Device})
}

func (m *machine) mount(o options, img lazyfs.Image) (string, error) {
	mount, err := m.fs.Mount(o.ctx, img)
	if err != nil {
		return "", err
	}
	m.later(func() error { mount.Release(); return nil })
	return mount.Path, nil
}
