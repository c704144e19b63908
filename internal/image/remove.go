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
	d, name, err := s.resolve(ctx, ref)
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
	return s.collect(ctx)
}

// collect deletes packs, blobs and local files that no manifest names.
func (s *Images) collect(ctx context.Context) error {
	packs, blobs := map[store.Digest]bool{}, map[store.Digest]bool{}
	workspaces, err := s.workspaces()
	if err != nil {
		return err
	}
	for _, w := range workspaces {
		all, err := s.digests(w)
		if err != nil {
			return err
		}
		local := map[string]bool{}
		for _, d := range all {
			m, err := s.readManifest(ctx, w, d)
			if err != nil {
				// Its packs are not known, so nothing can be told to be unneeded.
				s.log.Warn("nothing is deleted from the store while a manifest cannot be read", "image", d.Short(), "error", err)
				return nil
			}
			for _, p := range m.Packs {
				packs[p] = true
			}
			blobs[m.Meta.Digest], blobs[m.Chunks.Digest] = true, true
			local[m.Meta.Digest.String()], local[m.Chunks.Digest.String()] = true, true
		}
		s.dropLocal(w, local)
	}
	keep := func(set map[store.Digest]bool) func(store.Digest) bool {
		return func(d store.Digest) bool { return set[d] || s.opt.Keep != nil && s.opt.Keep(d) }
	}
	freed, err := s.opt.Store.Retain(ctx, keep(packs), keep(blobs))
	s.log.Info("deleted what no image needs", "packs", freed.Packs, "blobs", freed.Blobs, "bytes", freed.Bytes)
	return err
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
