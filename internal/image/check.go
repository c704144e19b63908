package image

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// CheckOptions say how to check.
type CheckOptions struct {
	Full     bool                    // read everything; else only see that all is there
	Repair   bool                    // as in store.CheckOptions
	Progress func(done, total int64) // as in store.CheckOptions
}

// CheckReport is what Check found.
type CheckReport struct {
	Images  int
	Packs   int
	Bytes   int64 // at the origin
	Damaged []Damage
	Ledger  []string // as in store.Checked, with the workspace in front
	Notes   []string // what could not be checked, and why
}

// Damage is an image that cannot be used, or not all of it.
type Damage struct {
	Workspace string
	Names     []string // empty for one without
	Digest    store.Digest
	Problem   string
}

// Check looks whether all that the images of all workspaces name is at the origin, and
// right. Damage is no error.
func (s *Images) Check(ctx context.Context, o CheckOptions) (CheckReport, error) {
	var r CheckReport
	workspaces, err := s.opt.Stores.List(ctx)
	if err != nil {
		return r, fault.Wrap(err, "check", "images")
	}
	slices.Sort(workspaces)
	checked := map[string]store.Checked{}
	for _, w := range workspaces {
		st, err := s.Store(w)
		if err == nil {
			checked[w], err = st.Check(ctx, store.CheckOptions{Full: o.Full, Repair: o.Repair, Progress: o.Progress})
		}
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		if err != nil {
			r.Notes = append(r.Notes, fmt.Sprintf("workspace %s: %v", w, err))
			continue
		}
		c := checked[w]
		r.Packs, r.Bytes = r.Packs+len(c.Packs), r.Bytes+c.Bytes
		for _, key := range c.Ledger {
			r.Ledger = append(r.Ledger, w+"/"+key)
		}
	}
	for _, w := range workspaces {
		c, ok := checked[w]
		if !ok {
			continue
		}
		if err := s.checkWorkspace(ctx, w, c, checked[store.SharedWorkspace], o.Full, &r); err != nil {
			return r, fault.Wrap(err, "check images of workspace", w)
		}
	}
	return r, nil
}

func (s *Images) checkWorkspace(ctx context.Context, workspace string, own, base store.Checked, full bool, r *CheckReport) error {
	st, err := s.Store(workspace)
	if err != nil {
		return err
	}
	names, err := s.names(ctx, workspace)
	if err != nil {
		return err
	}
	all, err := s.listed(ctx, st)
	if err != nil {
		return err
	}
	called := map[store.Digest][]string{}
	for _, n := range names {
		if n.Digest.IsZero() {
			r.Damaged = append(r.Damaged, Damage{workspace, []string{n.Name}, n.Digest, "the name cannot be read, so where it leads is not known"})
			continue
		}
		called[n.Digest] = append(called[n.Digest], n.Name)
		all[n.Digest] = true
	}
	var digests []store.Digest
	for d := range all {
		digests = append(digests, d)
	}
	slices.SortFunc(digests, func(a, b store.Digest) int { return strings.Compare(a.String(), b.String()) })
	r.Images += len(digests)
	var mu sync.Mutex
	return eachOf(ctx, len(digests), func(ctx context.Context, i int) error {
		problem, err := s.checkImage(ctx, workspace, digests[i], st, own, base, full)
		if err != nil || problem == "" {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		r.Damaged = append(r.Damaged, Damage{workspace, called[digests[i]], digests[i], problem})
		slices.SortFunc(r.Damaged, func(a, b Damage) int {
			return strings.Compare(a.Workspace+a.Digest.String(), b.Workspace+b.Digest.String())
		})
		return nil
	})
}

// checkImage says what is wrong with an image, "" = nothing.
func (s *Images) checkImage(ctx context.Context, workspace string, d store.Digest, st *store.Store, own, base store.Checked, full bool) (string, error) {
	m, _, err := s.originManifest(ctx, workspace, d)
	switch {
	case fault.Is(err, fault.NotFound):
		return "its manifest is missing", nil
	case fault.Is(err, fault.Corrupt):
		return "its manifest is damaged: " + err.Error(), nil
	case err != nil:
		return "", err
	}
	for _, blob := range []store.Digest{m.Meta.Digest, m.Chunks.Digest} {
		if !own.Blobs[st.BlobName(blob)] {
			return fmt.Sprintf("a part of its metadata, %s, is missing", blob.Short()), nil
		}
	}
	bad := ""
	for _, p := range m.Packs {
		problem, ok := own.Packs[p]
		if !ok {
			problem, ok = base.Packs[p]
		}
		if !ok {
			return fmt.Sprintf("pack %s is missing", p.Short()), nil
		}
		if problem != "" {
			bad = fmt.Sprintf("pack %s: %s", p.Short(), problem)
		}
	}
	if bad == "" && !full {
		return "", nil
	}
	// Another copy of a damaged chunk may be good.
	if problem, err := s.checkContent(ctx, st, m); problem != "" || err != nil {
		return problem, err
	}
	return "", nil
}

// checkContent reads an image's metadata, and asks for a good copy of each chunk.
func (s *Images) checkContent(ctx context.Context, st *store.Store, m *Manifest) (string, error) {
	for _, blob := range []struct {
		d    store.Digest
		size int64
	}{{m.Meta.Digest, m.Meta.Size}, {m.Chunks.Digest, tableSize(m.Chunks.Count)}} {
		b, err := st.GetBlob(ctx, blob.d, blob.size)
		if fault.Is(err, fault.Corrupt) || fault.Is(err, fault.NotFound) {
			return "its metadata is damaged: " + err.Error(), nil
		}
		if err != nil {
			return "", err
		}
		if blob.d != m.Chunks.Digest {
			continue
		}
		dev, damage := decodeTable(b)
		if damage != nil {
			return "its chunk table is damaged: " + damage.Error(), nil //nolint:nilerr // that is what was asked
		}
		missing := 0
		for _, c := range dev.chunks {
			if !c.Digest.IsZero() && !st.Has(c.Digest) {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Sprintf("%d of %d chunks have no good copy", missing, len(dev.chunks)), nil
		}
	}
	return "", nil
}
