package image

import (
	"bytes"
	"context"
	"slices"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Images share packs, so a pack stays for as long as any image needs one chunk of it. Of many images of which
// each was built on the one before, the last would keep all packs of the others. What is still needed of
// such packs is therefore stored once more, and they go.

const (
	repackWaste = 1 << 20 // bytes that nobody needs from which on a pack is worth the work,
	repackShare = 3       // if they are at least one part in so many
	// repackAtOnce bounds the bytes that one Repack reads and writes; the next goes on.
	repackAtOnce = 4 << 30
)

// Repacked is what Repack did, or would do.
type Repacked struct {
	Packs int   // that are needed no more
	Bytes int64 // that they took beyond what took their place: Collect gives them back
}

// Repack gives images new packs in place of those of which most images that needed
// them are gone. It reads and writes only where several machines do not share the store: there it
// does nothing, because traffic may cost more than room.
func (s *Images) Repack(ctx context.Context, dry bool) (Repacked, error) {
	var sum Repacked
	workspaces, err := s.opt.Stores.List(ctx)
	if err != nil {
		return sum, fault.Wrap(err, "repack", "images")
	}
	for _, w := range workspaces {
		st, err := s.Store(w)
		if err != nil || st.Shared() || w == store.SharedWorkspace { // whose packs other workspaces name
			continue
		}
		if err := s.repack(ctx, w, st, dry, &sum); err != nil {
			return sum, fault.Wrap(err, "repack images of workspace", w)
		}
	}
	return sum, nil
}

// packed is an image as Repack sees it.
type packed struct {
	manifest *Manifest
	chunks   []uint64 // short keys of its chunks, sorted
}

func (p *packed) needs(d store.Digest) bool {
	_, ok := slices.BinarySearch(p.chunks, shortKey(d))
	return ok
}

func (s *Images) repack(ctx context.Context, workspace string, st *store.Store, dry bool, sum *Repacked) error {
	if _, err := st.PackSizes(ctx); err != nil { // it knows the packs then
		return err
	}
	by, err := s.byPack(ctx, workspace, st)
	if err != nil {
		return err
	}
	hold := st.Claim()
	defer hold.Release()
	var old []store.Digest
	var live []store.Chunk
	var moved, waste int64
	for d, images := range by {
		use, ok := st.PackUse(d, func(c store.Digest) bool {
			return slices.ContainsFunc(images, func(p *packed) bool { return p.needs(c) })
		})
		dead := use.Size - use.Live
		if !ok || dead < repackWaste || dead*repackShare < use.Size || moved+use.Live > repackAtOnce {
			continue
		}
		old, live = append(old, d), append(live, use.Chunks...)
		moved, waste = moved+use.Live, waste+dead
	}
	sum.Packs, sum.Bytes = sum.Packs+len(old), sum.Bytes+waste
	if dry || len(old) == 0 {
		return nil
	}
	fresh, err := st.Repack(ctx, live)
	if err != nil {
		return err
	}
	done := map[*packed]bool{}
	for _, d := range old {
		for _, p := range by[d] {
			if done[p] {
				continue
			}
			done[p] = true
			its := slices.DeleteFunc(slices.Clone(fresh), func(d store.Digest) bool {
				use, _ := st.PackUse(d, p.needs)
				return len(use.Chunks) == 0
			})
			if err := s.exchangePacks(ctx, workspace, st, hold, p.manifest.Digest(), old, its); err != nil {
				return err
			}
		}
	}
	s.log.Info("packs were repacked", "workspace", workspace, "packs", len(old), "bytes", moved, "waste", waste)
	return nil
}

// byPack lists the images of a workspace by the packs that they name.
func (s *Images) byPack(ctx context.Context, workspace string, st *store.Store) (map[store.Digest][]*packed, error) {
	listed, err := s.listed(ctx, st)
	if err != nil {
		return nil, err
	}
	by := map[store.Digest][]*packed{}
	for d := range listed {
		m, _, err := s.originManifest(ctx, workspace, d)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err // its packs are not known, so neither is what is needed of others
		}
		table, err := st.GetBlob(ctx, m.Chunks.Digest, tableSize(m.Chunks.Count))
		if err != nil {
			return nil, fault.Wrap(err, "read chunk table of image", d.Short())
		}
		dev, err := decodeTable(table)
		if err != nil {
			return nil, err
		}
		p := &packed{manifest: m}
		for _, c := range dev.chunks {
			p.chunks = append(p.chunks, shortKey(c.Digest))
		}
		slices.Sort(p.chunks)
		p.chunks = slices.Compact(p.chunks)
		for _, pack := range m.Packs {
			by[pack] = append(by[pack], p)
		}
	}
	return by, nil
}

// exchangePacks makes an image name fresh packs in place of old ones. If somebody else changes it
// at the same moment it stays as it is, and so do the old packs.
func (s *Images) exchangePacks(ctx context.Context, workspace string, st *store.Store, hold *store.Hold, d store.Digest, old, fresh []store.Digest) error {
	done, err := s.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	m, version, err := s.originManifest(ctx, workspace, d)
	if err != nil {
		if fault.Is(err, fault.NotFound) {
			err = nil // removed meanwhile
		}
		return err
	}
	next := *m
	next.Packs = slices.DeleteFunc(slices.Clone(m.Packs), func(p store.Digest) bool { return slices.Contains(old, p) })
	next.Packs = append(next.Packs, fresh...)
	b := next.Encode()
	read, err := ParseManifest(b)
	if err != nil {
		return err
	}
	err = hold.Publish(ctx, fresh, nil, func() error {
		_, err := st.PutRecord(ctx, kindManifests, d.String(), b, &version)
		return err
	}, func() error {
		_, err := st.PutRecord(ctx, kindManifests, d.String(), m.Encode(), nil)
		return err
	})
	if fault.Is(err, fault.Exists) {
		return nil
	}
	if err != nil {
		return err
	}
	if here, err := s.readManifest(ctx, workspace, d); err == nil && !bytes.Equal(here.Encode(), b) {
		if err := publish(s.manifestPath(workspace, d), read.Encode()); err != nil {
			return err
		}
	}
	// Who has the image open keeps the old list: chunks are found wherever they are.
	return nil
}
