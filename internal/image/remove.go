package image

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Remove drops the name that ref is, or all names if it is a digest. An image
// that has no name then is removed, and what no other image needs is deleted from
// the store, unless something runs on it: that is fault.Exists, and nothing changes.
func (s *Images) Remove(ctx context.Context, ref Ref) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	d, name, err := s.resolve(ref)
	if err != nil && name == "" {
		return err
	}
	if name == "" {
		if _, err := s.load(ctx, ref.Workspace, d); fault.Is(err, fault.NotFound) {
			return s.notFound(ref)
		}
	}
	names, err := s.names(ref.Workspace)
	if err != nil {
		return err
	}
	var drop []string
	last := true
	for _, n := range names {
		switch {
		case name == n.Name || name == "" && n.Digest == d:
			drop = append(drop, n.Name)
		case n.Digest == d:
			last = false
		}
	}
	if last && s.opt.InUse != nil && !d.IsZero() && s.opt.InUse(d) {
		return fault.Wrap(fault.New(fault.Exists, "the image is in use").
			WithHint("Wait until nothing runs on it, or stop what does; `brisk ps` shows it."), "remove image", ref.Name)
	}
	for _, n := range drop {
		if err := unpublish(s.namePath(ref.Workspace, n)); err != nil {
			return fault.Wrap(err, "remove image", ref.Name)
		}
	}
	if !last || d.IsZero() {
		return nil
	}
	return fault.Wrap(s.discard(ctx, ref.Workspace, d), "remove image", ref.Name)
}

// discard removes an image's manifest and then what it alone referred to.
func (s *Images) discard(ctx context.Context, workspace string, d store.Digest) error {
	// First at the origin: if we die in between, Open puts it back.
	if s.opt.Origin != nil {
		if err := s.opt.Origin.Delete(ctx, originKey(workspace, d)); err != nil {
			return err
		}
	}
	if err := unpublish(s.manifestPath(workspace, d)); err != nil {
		return err
	}
	s.loaded.Lock()
	delete(s.loaded.images, loadedKey{workspace, d})
	s.loaded.Unlock()
	_, err := s.collect(ctx)
	return err
}

// Collect deletes from the store what no manifest names: what a process that died
// had written of an image, or an interrupted Remove left. It may run at any time.
func (s *Images) Collect(ctx context.Context) (store.Freed, error) {
	s.changes.Lock()
	defer s.changes.Unlock()
	freed, err := s.collect(ctx)
	return freed, fault.Wrap(err, "collect garbage", "")
}

// collect deletes packs, blobs and local files that no manifest names.
func (s *Images) collect(ctx context.Context) (freed store.Freed, err error) {
	needed := roots{packs: map[store.Digest]bool{}, blobs: map[store.Digest]bool{}}
	known, err := s.manifests(ctx)
	if err != nil {
		return freed, err
	}
	local := map[string]map[string]bool{} // by workspace: names of files
	for at := range known {
		m, err := s.readManifest(ctx, at.workspace, at.digest)
		if ctx.Err() != nil {
			return freed, ctx.Err()
		}
		if err != nil {
			// Its packs are not known, so nothing can be told to be unneeded.
			s.log.Warn("nothing is deleted from the store while a manifest cannot be read", "image", at.digest.Short(), "error", err)
			return freed, nil
		}
		needed.add(m)
		if local[at.workspace] == nil {
			local[at.workspace] = map[string]bool{}
		}
		local[at.workspace][m.Meta.Digest.String()], local[at.workspace][m.Chunks.Digest.String()] = true, true
	}
	workspaces, err := s.workspaces()
	if err != nil {
		return freed, err
	}
	for _, w := range workspaces {
		s.dropLocal(w, local[w])
	}
	keep := func(set map[store.Digest]bool) func(store.Digest) bool {
		return func(d store.Digest) bool { return set[d] || s.opt.Keep != nil && s.opt.Keep(d) }
	}
	freed, err = s.opt.Store.Retain(ctx, keep(needed.packs), keep(needed.blobs))
	if freed != (store.Freed{}) {
		s.log.Info("deleted what no image needs", "packs", freed.Packs, "blobs", freed.Blobs, "bytes", freed.Bytes)
	}
	return freed, err
}

// roots are the objects of the store that manifests name.
type roots struct{ packs, blobs map[store.Digest]bool }

func (r roots) add(m *Manifest) {
	for _, p := range m.Packs {
		r.packs[p] = true
	}
	r.blobs[m.Meta.Digest], r.blobs[m.Chunks.Digest] = true, true
}

// manifests lists all images, of all workspaces: those on this machine, and those
// that other machines have written to the same origin.
func (s *Images) manifests(ctx context.Context) (map[loadedKey]bool, error) {
	known := map[loadedKey]bool{}
	workspaces, err := s.workspaces()
	if err != nil {
		return nil, err
	}
	for _, w := range workspaces {
		all, err := s.digests(w)
		if err != nil {
			return nil, err
		}
		for _, d := range all {
			known[loadedKey{w, d}] = true
		}
	}
	if s.opt.Origin == nil {
		return known, nil
	}
	return known, s.opt.Origin.List(ctx, originRoot, func(o store.Object) error {
		workspace, digits, _ := strings.Cut(strings.TrimPrefix(o.Key, originRoot), "/")
		if d, err := store.ParseDigest(digits); err == nil && checkWorkspace(workspace) == nil {
			known[loadedKey{workspace, d}] = true
		}
		return nil
	})
}

// dropLocal removes local copies of metadata that no manifest of the workspace names.
func (s *Images) dropLocal(workspace string, keep map[string]bool) {
	dir := filepath.Join(s.opt.Dir, workspace, "meta")
	files, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range files {
		if !keep[f.Name()] && !strings.HasPrefix(f.Name(), tempPrefix) {
			os.Remove(filepath.Join(dir, f.Name()))
		}
	}
}
