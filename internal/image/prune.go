package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Images without a name are a cache: the steps of builds made them, the next build of the
// same steps takes them up again, and functions run on the last of them.

// touchEvery is how often the use of an image is noted. It is small against every age
// that Prune is asked for.
const touchEvery = time.Hour

// kindUses are records of when images without a name were last used on any machine, for
// stores that several use. Each is rewritten at most once in usesEvery.
const (
	kindUses  = "uses"
	usesEvery = 24 * time.Hour
)

// touched is when the use of each image was last noted.
type touched struct {
	sync.Mutex
	at map[loadedKey]time.Time
}

// touch notes that an image is used, on the time of its manifest's local copy.
func (s *Images) touch(workspace string, d store.Digest) {
	now, key := time.Now(), loadedKey{workspace, d}
	s.touched.Lock()
	defer s.touched.Unlock()
	if now.Sub(s.touched.at[key]) < touchEvery {
		return
	}
	if s.touched.at == nil {
		s.touched.at = map[loadedKey]time.Time{}
	}
	s.touched.at[key] = now
	_ = os.Chtimes(s.manifestPath(workspace, d), now, now) // should it fail, the image may be made again
}

// PruneOptions say which images without a name go.
type PruneOptions struct {
	Before time.Time // those that were last used before
	// Limit bounds what images without a name take of the store beside those with one, in bytes as
	// stored: those that were not used for longest go, but none used since Young. 0 = no limit.
	Limit int64
	Young time.Time
	Keep  func(workspace string, d store.Digest) bool // these stay; nil = none
	Dry   bool
}

// Pruned are the images that went.
type Pruned struct {
	Images []store.Digest
	Bytes  int64 // that they took, as stored, and others did not share
}

// Prune removes images without a name, of all workspaces. What is in use stays. What
// they took of the store is given back by Collect.
func (s *Images) Prune(ctx context.Context, o PruneOptions) (Pruned, error) {
	var all Pruned
	workspaces, err := s.opt.Stores.List(ctx)
	if err != nil {
		return all, fault.Wrap(err, "prune", "images")
	}
	for _, w := range workspaces {
		st, err := s.Store(w)
		if err != nil {
			continue // Collect says so
		}
		if err := s.prune(ctx, w, st, o, &all); err != nil {
			return all, fault.Wrap(err, "prune images of workspace", w)
		}
	}
	return all, nil
}

// nameless is an image without a name.
type nameless struct {
	digest store.Digest
	used   time.Time
	packs  []store.Digest
}

func (s *Images) prune(ctx context.Context, workspace string, st *store.Store, o PruneOptions, all *Pruned) error {
	list, need, err := s.nameless(ctx, workspace, st, o)
	if err != nil {
		return err
	}
	// Oldest first; each takes with it the packs that nothing else needs then.
	slices.SortFunc(list, func(a, b nameless) int {
		return cmp.Or(a.used.Compare(b.used), bytes.Compare(a.digest[:], b.digest[:]))
	})
	size, err := st.PackSizes(ctx)
	if err != nil {
		return err
	}
	own := func(n nameless) (sum int64) { // what goes with it
		for _, p := range n.packs {
			if need[p] == 1 {
				sum += size(p)
			}
		}
		return sum
	}
	among := map[store.Digest]int{}
	for _, n := range list {
		for _, p := range n.packs {
			among[p]++
		}
	}
	var total int64 // of packs that no other image needs
	for p, n := range among {
		if n == need[p] {
			total += size(p)
		}
	}
	for _, n := range list {
		old := n.used.Before(o.Before)
		over := o.Limit > 0 && total > o.Limit && n.used.Before(o.Young)
		if !old && !over {
			continue
		}
		gone, err := s.removeUnused(ctx, workspace, n, o.Dry)
		if err != nil {
			return err
		}
		if !gone {
			continue
		}
		bytes := own(n)
		total -= bytes
		for _, p := range n.packs {
			need[p]--
		}
		all.Images, all.Bytes = append(all.Images, n.digest), all.Bytes+bytes
	}
	return nil
}

// nameless lists the images without a name that may go, and how many images need each pack.
func (s *Images) nameless(ctx context.Context, workspace string, st *store.Store, o PruneOptions) (list []nameless, need map[store.Digest]int, err error) {
	names, err := s.names(ctx, workspace)
	if err != nil {
		return nil, nil, err
	}
	named := map[store.Digest]bool{}
	for _, n := range names {
		named[n.Digest] = true
	}
	all, err := s.digests(ctx, workspace)
	if err != nil {
		return nil, nil, err
	}
	need = map[store.Digest]int{}
	for _, d := range all {
		m, err := s.readManifest(ctx, workspace, d)
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, p := range m.Packs {
			need[p]++
		}
		if named[d] || o.Keep != nil && o.Keep(workspace, d) {
			continue
		}
		used, err := s.lastUse(ctx, workspace, st, d, m, o.Dry)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, nameless{d, used, m.Packs})
	}
	return list, need, nil
}

// lastUse is when an image was used, on whatever machine.
func (s *Images) lastUse(ctx context.Context, workspace string, st *store.Store, d store.Digest, m *Manifest, dry bool) (time.Time, error) {
	used := m.Created
	if f, err := os.Stat(s.manifestPath(workspace, d)); err == nil && f.ModTime().After(used) {
		used = f.ModTime()
	}
	if !st.Shared() {
		return used, nil
	}
	b, _, err := st.GetRecord(ctx, kindUses, d.String())
	if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Corrupt) {
		return used, err
	}
	elsewhere, _ := time.Parse(time.RFC3339, string(b))
	if used.Sub(elsewhere) < usesEvery {
		if elsewhere.After(used) {
			used = elsewhere
		}
		return used, nil
	}
	if dry {
		return used, nil
	}
	_, err = st.PutRecord(ctx, kindUses, d.String(), []byte(used.UTC().Format(time.RFC3339)), nil)
	return used, err
}

// removeUnused removes an image, unless it has got a name or has been used meanwhile.
func (s *Images) removeUnused(ctx context.Context, workspace string, n nameless, dry bool) (bool, error) {
	done, err := s.change(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	if s.opt.InUse != nil && s.opt.InUse(n.digest) {
		return false, nil
	}
	if f, err := os.Stat(s.manifestPath(workspace, n.digest)); err == nil && f.ModTime().After(n.used) {
		return false, nil
	}
	names, err := s.names(ctx, workspace)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(names, func(f nameFile) bool { return f.Digest == n.digest }) {
		return false, nil
	}
	if dry {
		return true, nil
	}
	if err := s.discard(ctx, workspace, n.digest); err != nil {
		return false, err
	}
	st, err := s.Store(workspace)
	if err != nil {
		return false, err
	}
	return true, st.DeleteRecord(ctx, kindUses, n.digest.String())
}

// Exists reports whether any workspace has an image, as far as can be told: an origin
// that does not answer has everything.
func (s *Images) Exists(ctx context.Context) (func(store.Digest) bool, error) {
	set := map[store.Digest]bool{}
	workspaces, err := s.opt.Stores.List(ctx)
	if err != nil {
		return nil, fault.Wrap(err, "list", "images")
	}
	for _, w := range workspaces {
		all, err := s.digests(ctx, w)
		if err != nil {
			return nil, err
		}
		for _, d := range all {
			set[d] = true
		}
	}
	return func(d store.Digest) bool { return set[d] }, nil
}

// Wanted reports which chunks the images have whose chunk tables are on this machine. Now and
// then it takes another chunk for one of them.
func (s *Images) Wanted() (func(store.Digest) bool, error) {
	workspaces, err := s.workspaces()
	if err != nil {
		return nil, err
	}
	// Eight bytes of a digest tell chunks apart well enough, and a million of them are 8 MB.
	var keys []uint64
	limit := 1 << 20
	for _, w := range workspaces {
		all, err := s.localDigests(w)
		if err != nil {
			return nil, err
		}
		for _, d := range all {
			b, err := os.ReadFile(s.manifestPath(w, d))
			if err != nil {
				continue
			}
			m, err := parseAs(b, d)
			if err != nil {
				continue
			}
			table, err := os.ReadFile(s.blobPath(w, m.Chunks.Digest))
			if err != nil {
				continue // then nothing was read of it here, or its chunks are read again
			}
			dev, err := decodeTable(table)
			if err != nil {
				continue
			}
			for _, c := range dev.chunks {
				keys = append(keys, shortKey(c.Digest))
			}
			if len(keys) > limit { // images have much in common
				slices.Sort(keys)
				keys = slices.Compact(keys)
				limit = max(limit, 2*len(keys))
			}
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	return func(d store.Digest) bool {
		_, ok := slices.BinarySearch(keys, shortKey(d))
		return ok
	}, nil
}

func shortKey(d store.Digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }
