package image

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Remove drops the name that ref is, or all names if it is a digest. An image
// that has no name then is removed, and what no other image needs is deleted from
// the store, unless something runs on it: that is fault.Exists, and nothing changes.
// A shared image is removed by who may share.
func (s *Images) Remove(ctx context.Context, ref Ref) error {
	done, err := s.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	t, err := s.resolve(ctx, ref)
	if err != nil && t.name == "" {
		return err
	}
	if t.workspace == store.SharedWorkspace && !s.opt.MayShare(ref.Workspace) {
		return fault.New(fault.Invalid, "workspace %q may not remove shared images", ref.Workspace)
	}
	if t.name == "" {
		if _, err := s.load(ctx, t.workspace, t.digest); fault.Is(err, fault.NotFound) {
			return s.notFound(ctx, ref)
		}
	}
	names, err := s.names(ctx, t.workspace)
	if err != nil {
		return err
	}
	var drop []string
	last := true
	for _, n := range names {
		switch {
		case t.name == n.Name || t.name == "" && n.Digest == t.digest:
			drop = append(drop, n.Name)
		case n.Digest == t.digest:
			last = false
		}
	}
	if last && s.opt.InUse != nil && !t.digest.IsZero() && s.opt.InUse(t.digest) {
		return fault.Wrap(fault.New(fault.Exists, "the image is in use").
			WithHint("Wait until nothing runs on it, or stop what does; `brisk ps` shows it."), "remove image", ref.Name)
	}
	for _, n := range drop {
		if err := s.dropName(ctx, t.workspace, n); err != nil {
			return fault.Wrap(err, "remove image", ref.Name)
		}
	}
	if !last || t.digest.IsZero() {
		return nil
	}
	return fault.Wrap(s.discard(ctx, t.workspace, t.digest), "remove image", ref.Name)
}

// discard removes an image's manifest and then what it alone referred to.
func (s *Images) discard(ctx context.Context, workspace string, d store.Digest) error {
	st, err := s.Store(workspace)
	if err != nil {
		return err
	}
	if err := st.DeleteRecord(ctx, kindManifests, d.String()); err != nil {
		return err
	}
	s.forget(workspace, d)
	_, err = s.collect(ctx, workspace)
	return err
}

// forget drops what is here of an image that is not at the origin any more.
func (s *Images) forget(workspace string, d store.Digest) {
	if err := unpublish(s.manifestPath(workspace, d)); err != nil {
		s.log.Warn("the copy of a manifest cannot be removed", "image", d.Short(), "error", err)
	}
	s.loaded.Lock()
	delete(s.loaded.images, loadedKey{workspace, d})
	s.loaded.Unlock()
}

// Collect deletes from the stores what no manifest names: what a process that died
// had written of an image, or an interrupted Remove left. It may run at any time.
func (s *Images) Collect(ctx context.Context) (freed store.Freed, err error) {
	done, err := s.change(ctx)
	if err != nil {
		return freed, err
	}
	defer done()
	workspaces, err := s.opt.Stores.List(ctx)
	if err != nil {
		return freed, fault.Wrap(err, "collect garbage", "")
	}
	for _, w := range workspaces {
		f, err := s.collect(ctx, w)
		freed.Packs, freed.Blobs, freed.Bytes = freed.Packs+f.Packs, freed.Blobs+f.Blobs, freed.Bytes+f.Bytes
		if err != nil {
			return freed, fault.Wrap(err, "collect garbage", w)
		}
	}
	return freed, nil
}

// collect deletes packs, blobs and local files of a workspace that no manifest names.
func (s *Images) collect(ctx context.Context, workspace string) (freed store.Freed, err error) {
	st, err := s.Store(workspace)
	if err != nil {
		return freed, err
	}
	own, err := s.roots(ctx, workspace)
	if err != nil {
		return freed, s.unknown(ctx, err)
	}
	s.dropLocal(workspace, own)
	if workspace == store.SharedWorkspace {
		// Everybody's images may lie in packs of the shared ones.
		others, err := s.opt.Stores.List(ctx)
		if err != nil {
			return freed, err
		}
		for _, w := range others {
			theirs, err := s.roots(ctx, w)
			if err != nil {
				return freed, s.unknown(ctx, err)
			}
			maps.Copy(own.packs, theirs.packs)
		}
	}
	blobs := map[store.Digest]bool{}
	for d := range own.blobs {
		blobs[st.BlobName(d)] = true
	}
	freed, err = st.Retain(ctx,
		func(d store.Digest) bool { return own.packs[d] },
		func(name store.Digest) bool { return blobs[name] })
	if freed != (store.Freed{}) {
		s.log.Info("deleted what no image needs", "workspace", workspace, "packs", freed.Packs, "blobs", freed.Blobs, "bytes", freed.Bytes)
	}
	return freed, err
}

// unknown is what collecting comes to if not all roots are known: nothing can be
// told to be unneeded, and that is no failure of who removes an image.
func (s *Images) unknown(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.log.Warn("nothing is deleted from the store while a manifest cannot be read", "error", err)
	return nil
}

// roots are the objects of the store that manifests name.
type roots struct{ packs, blobs map[store.Digest]bool }

func (r roots) add(m *Manifest) {
	for _, p := range m.Packs {
		r.packs[p] = true
	}
	r.blobs[m.Meta.Digest], r.blobs[m.Chunks.Digest] = true, true
}

// roots are what the images of a workspace need, as the origin has them now. Copies of
// manifests here that it does not have any more are dropped.
func (s *Images) roots(ctx context.Context, workspace string) (roots, error) {
	r := roots{packs: map[store.Digest]bool{}, blobs: map[store.Digest]bool{}}
	st, err := s.Store(workspace)
	if err != nil {
		return r, err
	}
	listed := map[store.Digest]bool{}
	if err := st.ListRecords(ctx, kindManifests, func(name string) error {
		d, err := store.ParseDigest(name)
		if err == nil {
			listed[d] = true
		}
		return nil
	}); err != nil {
		return r, err
	}
	all := slices.Collect(maps.Keys(listed))
	manifests := make([]*Manifest, len(all))
	if err := eachOf(ctx, len(all), func(ctx context.Context, i int) (err error) {
		// Not the copy here: another machine may have added packs.
		manifests[i], _, err = s.originManifest(ctx, workspace, all[i])
		if fault.Is(err, fault.Corrupt) {
			manifests[i], err = s.readManifest(ctx, workspace, all[i])
		}
		if fault.Is(err, fault.NotFound) {
			err = nil // removed meanwhile
		}
		return err
	}); err != nil {
		return r, err
	}
	for _, m := range manifests {
		if m != nil {
			r.add(m)
		}
	}
	if err := s.profileRoots(ctx, st, listed, r); err != nil {
		return r, err
	}
	here, err := s.localDigests(workspace)
	for _, d := range here {
		if !listed[d] {
			s.forget(workspace, d)
		}
	}
	return r, err
}

// profileRoots adds the hot packs that profiles of the listed images name.
func (s *Images) profileRoots(ctx context.Context, st *store.Store, listed map[store.Digest]bool, r roots) error {
	var names []string
	if err := st.ListRecords(ctx, profileKind, func(name string) error {
		digits, _, _ := strings.Cut(name, "/")
		if d, err := store.ParseDigest(digits); err == nil && listed[d] {
			names = append(names, name)
		}
		return nil
	}); err != nil {
		return err
	}
	packs := make([][]store.HotPack, len(names))
	err := eachOf(ctx, len(names), func(ctx context.Context, i int) error {
		b, _, err := st.GetRecord(ctx, profileKind, names[i])
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) {
			return nil // a hint that is lost
		}
		if err != nil {
			return err
		}
		if p, err := ParseProfile(b); err == nil {
			packs[i] = p.Hot
		}
		return nil
	})
	for _, l := range packs {
		for _, h := range l {
			r.packs[h.Pack] = true
		}
	}
	return err
}

// dropLocal removes local copies of metadata that no manifest of the workspace names.
func (s *Images) dropLocal(workspace string, keep roots) {
	dir := filepath.Join(s.opt.Dir, workspace, "meta")
	files, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range files {
		if d, err := store.ParseDigest(f.Name()); err == nil && keep.blobs[d] || strings.HasPrefix(f.Name(), tempPrefix) {
			continue
		}
		os.Remove(filepath.Join(dir, f.Name()))
	}
}
