package image

import (
	"context"
	"io"
	"maps"
	"slices"

	"brisk.dev/brisk/internal/fault"
)

// Commit makes an image of a parent and what a sandbox changed on top of it:
// layer is a tar in the convention of overlayfs. edit, if not nil, changes the
// parent's Config. drop, if not nil, is asked for the path of each entry of the
// layer ("/run/brisk"): true leaves it out. name may be empty.
func (s *Images) Commit(ctx context.Context, parent *Image, layer io.Reader, edit func(*Config), drop func(path string) bool, workspace, name string) (*Image, Result, error) {
	return s.Extend(ctx, parent, layer, LayerOptions{Whiteouts: Overlay, Drop: drop}, edit, workspace, name)
}

// Extend is Commit for a layer of any convention.
func (s *Images) Extend(ctx context.Context, parent *Image, layer io.Reader, opt LayerOptions, edit func(*Config), workspace, name string) (*Image, Result, error) {
	t, err := parent.Tree(ctx)
	if err != nil {
		return nil, Result{}, err
	}
	st, err := s.Store(workspace)
	if err != nil {
		return nil, Result{}, err
	}
	release := st.Hold()
	defer release()
	batch := st.Begin(ctx)
	defer batch.Abort() // of no effect after Write
	if _, err := t.ApplyTar(ctx, layer, batch, opt); err != nil {
		return nil, Result{}, fault.Wrap(err, "add a layer to image", parent.Digest.Short())
	}
	cfg := parent.Config().Clone()
	if edit != nil {
		edit(&cfg)
	}
	return s.Write(ctx, t, cfg, batch, workspace, name)
}

// Clone copies a Config so that the copy can be changed.
func (c Config) Clone() Config {
	c.Env, c.Entrypoint, c.Cmd = slices.Clone(c.Env), slices.Clone(c.Entrypoint), slices.Clone(c.Cmd)
	c.Labels = maps.Clone(c.Labels)
	return c
}
