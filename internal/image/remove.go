package image

import (
	"context"
	"strings"
	"sync"

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
	done = sync.OnceFunc(done)
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
	if err := s.discard(ctx, t.workspace, t.digest); err != nil {
		return fault.Wrap(err, "remove image", ref.Name)
	}
	done()
	return fault.Wrap(s.collectNow(ctx, t.workspace), "remove image", ref.Name)
}

// discard removes an image: its profiles, its manifest, and what is here of it. What they named is
// for the collector. Precondition: the registry's lock is held.
func (s *Images) discard(ctx context.Context, workspace string, d store.Digest) error {
	st, err := s.Store(workspace)
	if err != nil {
		return err
	}
	// Machines that read the image have the grace period to say so, from now on. A manifest
	// that cannot be read is in nobody's use.
	if m, _, err := s.originManifest(ctx, workspace, d); err == nil {
		if err := st.Reprieve(ctx, m.Packs, []store.Digest{m.Meta.Digest, m.Chunks.Digest}); err != nil {
			return err
		}
	}
	if err := s.dropProfiles(ctx, st, func(image store.Digest) bool { return image == d }); err != nil {
		return err
	}
	if err := st.DeleteRecord(ctx, kindManifests, d.String()); err != nil {
		return err
	}
	s.forget(workspace, d)
	return nil
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

// dropProfiles removes the profiles of images.
func (s *Images) dropProfiles(ctx context.Context, st *store.Store, of func(image store.Digest) bool) error {
	names, err := profileNames(ctx, st, of)
	if err != nil {
		return err
	}
	return eachOf(ctx, len(names), func(ctx context.Context, i int) error {
		return st.DeleteRecord(ctx, profileKind, names[i])
	})
}

// profileNames lists the records of profiles of images.
func profileNames(ctx context.Context, st *store.Store, of func(image store.Digest) bool) (names []string, err error) {
	err = st.ListRecords(ctx, profileKind, func(name string) error {
		digits, _, _ := strings.Cut(name, "/")
		if d, err := store.ParseDigest(digits); err == nil && of(d) {
			names = append(names, name)
		}
		return nil
	})
	return names, err
}
