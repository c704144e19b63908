package image

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// CollectOptions say how to collect.
type CollectOptions struct {
	Grace    time.Duration         // as in store.CollectOptions
	Dry      bool                  // delete nothing, and say what would be
	Recent   time.Duration         // as in store.CollectOptions
	Progress func(done, total int) // as in store.CollectOptions
}

// Collected is what a collection deleted or, as a dry run, would have.
type Collected struct {
	store.Collected          // of all workspaces
	Files           int      // copies of metadata on this machine
	FileBytes       int64    // in them
	Profiles        int      // of images that are gone
	Notes           []string // what could not be collected, and why
}

// Collect deletes from the stores of all workspaces what no manifest and no profile names: what a
// process that died had written of an image, or what images needed that are removed. It may run at any
// time, and blocks nobody.
//
// A workspace whose manifests cannot all be read, because one is damaged or the key is not here, keeps
// everything, and so does the shared one, whose packs they may name: Notes says so.
func (s *Images) Collect(ctx context.Context, o CollectOptions) (Collected, error) {
	var sum Collected
	workspaces, err := s.opt.Stores.List(ctx)
	if err != nil {
		return sum, fault.Wrap(err, "collect", "garbage")
	}
	slices.Sort(workspaces)
	for _, w := range workspaces {
		err := s.collect(ctx, w, o, &sum)
		if ctx.Err() != nil {
			return sum, ctx.Err()
		}
		if err != nil {
			s.log.Warn("garbage cannot be collected", "workspace", w, "error", err)
			sum.Notes = append(sum.Notes, fmt.Sprintf("nothing of workspace %s is deleted: %v", w, err))
		}
	}
	return sum, nil
}

// collectNow collects one workspace's garbage, if that gives back anything at once.
func (s *Images) collectNow(ctx context.Context, workspace string) error {
	st, err := s.Store(workspace)
	if err != nil || st.Shared() {
		return err
	}
	var c Collected
	if err := s.collect(ctx, workspace, CollectOptions{}, &c); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		// That is no failure of who removes an image.
		s.log.Warn("nothing is deleted from the store", "workspace", workspace, "error", err)
	}
	return nil
}

// collect collects one workspace's garbage, and adds it to sum.
func (s *Images) collect(ctx context.Context, workspace string, o CollectOptions, sum *Collected) error {
	st, err := s.Store(workspace)
	if err != nil {
		return err
	}
	if err := s.tidy(ctx, workspace, st, o.Dry, sum); err != nil {
		return err
	}
	c, err := st.Collect(ctx, store.CollectOptions{
		Roots: func(ctx context.Context) (store.Named, error) { return s.named(ctx, workspace) },
		Grace: o.Grace, Dry: o.Dry, Recent: o.Recent, Progress: o.Progress,
	})
	if c.Packs+c.Blobs > 0 && !o.Dry {
		s.log.Info("deleted what no image needs", "workspace", workspace, "packs", c.Packs, "blobs", c.Blobs, "bytes", c.Bytes)
	}
	sum.add(c)
	return err
}

func (c *Collected) add(o store.Collected) {
	c.Packs, c.Blobs, c.Bytes = c.Packs+o.Packs, c.Blobs+o.Blobs, c.Bytes+o.Bytes
	c.Waiting, c.WaitingBytes = c.Waiting+o.Waiting, c.WaitingBytes+o.WaitingBytes
	c.Held, c.HeldBytes = c.Held+o.Held, c.HeldBytes+o.HeldBytes
	c.Holds += o.Holds
}

// named is all that may name packs and blobs of a workspace's store, as the origin
// has it now.
func (s *Images) named(ctx context.Context, workspace string) (store.Named, error) {
	n := store.Named{Packs: map[store.Digest]struct{}{}, Blobs: map[store.Digest]struct{}{}}
	if err := s.addNamed(ctx, workspace, n); err != nil || workspace != store.SharedWorkspace {
		return n, err
	}
	// Everybody's images may lie in packs of the shared ones.
	others, err := s.opt.Stores.List(ctx)
	if err != nil {
		return n, err
	}
	for _, w := range others {
		theirs := store.Named{Packs: n.Packs, Blobs: map[store.Digest]struct{}{}}
		if w == store.SharedWorkspace {
			continue
		}
		if err := s.addNamed(ctx, w, theirs); err != nil {
			return n, fault.Wrap(err, "read what workspace "+w+" needs of", "the shared images")
		}
	}
	return n, nil
}

// addNamed adds what the manifests of a workspace name, and the profiles of these images.
func (s *Images) addNamed(ctx context.Context, workspace string, n store.Named) error {
	st, err := s.Store(workspace)
	if err != nil {
		return err
	}
	listed, err := s.listed(ctx, st)
	if err != nil {
		return err
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
		return err
	}
	for _, m := range manifests {
		if m == nil {
			continue
		}
		for _, p := range m.Packs {
			n.Packs[p] = struct{}{}
		}
		n.Blobs[m.Meta.Digest], n.Blobs[m.Chunks.Digest] = struct{}{}, struct{}{}
	}
	return s.addHot(ctx, st, listed, n)
}

// listed are the images of a store.
func (s *Images) listed(ctx context.Context, st *store.Store) (map[store.Digest]bool, error) {
	l := map[store.Digest]bool{}
	return l, st.ListRecords(ctx, kindManifests, func(name string) error {
		if d, err := store.ParseDigest(name); err == nil {
			l[d] = true
		}
		return nil
	})
}

// addHot adds the hot packs that profiles of the listed images name.
func (s *Images) addHot(ctx context.Context, st *store.Store, listed map[store.Digest]bool, n store.Named) error {
	names, err := profileNames(ctx, st, func(d store.Digest) bool { return listed[d] })
	if err != nil {
		return err
	}
	packs := make([][]store.HotPack, len(names))
	err = eachOf(ctx, len(names), func(ctx context.Context, i int) error {
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
			n.Packs[h.Pack] = struct{}{}
		}
	}
	return err
}

// tidy removes what is left of images that are gone: their profiles, and what is on
// this machine of them.
func (s *Images) tidy(ctx context.Context, workspace string, st *store.Store, dry bool, sum *Collected) error {
	listed, err := s.listed(ctx, st)
	if err != nil {
		return err
	}
	gone := func(d store.Digest) bool { return !listed[d] }
	names, err := profileNames(ctx, st, gone)
	if err != nil {
		return err
	}
	sum.Profiles += len(names)
	if !dry {
		if err := s.dropProfiles(ctx, st, gone); err != nil {
			return err
		}
	}
	// Under the lock, or it would find files of an image that is just being written.
	done, err := s.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	here, err := s.localDigests(workspace)
	if err != nil {
		return err
	}
	needed := map[store.Digest]bool{}
	for _, d := range here {
		if !listed[d] {
			// It may have been written since it was listed.
			if _, _, err := s.originManifest(ctx, workspace, d); fault.Is(err, fault.NotFound) && !dry {
				s.forget(workspace, d)
			}
			continue
		}
		if m, err := s.readManifest(ctx, workspace, d); err == nil {
			needed[m.Meta.Digest], needed[m.Chunks.Digest] = true, true
		}
	}
	s.dropLocal(workspace, needed, dry, sum)
	return nil
}

// dropLocal removes local copies of metadata that no local manifest of the workspace names.
func (s *Images) dropLocal(workspace string, needed map[store.Digest]bool, dry bool, sum *Collected) {
	dir := filepath.Join(s.opt.Dir, workspace, "meta")
	files, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range files {
		if d, err := store.ParseDigest(f.Name()); err == nil && needed[d] || strings.HasPrefix(f.Name(), tempPrefix) {
			continue
		}
		if st, err := f.Info(); err == nil {
			sum.Files++
			sum.FileBytes += st.Size()
		}
		if !dry {
			os.Remove(filepath.Join(dir, f.Name()))
		}
	}
}
