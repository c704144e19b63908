package image

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Manifests and names are records of the workspace's store, where every machine of
// the same origin finds them. What this machine has seen of them lies in DIR, too,
// and serves when the origin does not answer.
const (
	kindManifests = "manifests" // by the image's digest
	kindNames     = "names"     // by themselves
)

// patience is how long a name waits for an origin that does not answer before the
// local copy has to do. A slow origin answers in a tenth of it.
const patience = 3 * time.Second

// silence is for how long an origin that did not answer is not asked again where a
// name leads, if the local copy can say it.
const silence = 10 * time.Second

// recordsAtOnce bounds the records that one listing reads at once: 16 of 25 ms each
// are 640 a second.
const recordsAtOnce = 16

// away reports an error that says nothing but that the origin does not answer us.
func away(ctx context.Context, err error) bool {
	return ctx.Err() == nil && store.Away(err)
}

// Store is a workspace's store: what an image of the workspace is written to.
func (s *Images) Store(workspace string) (*store.Store, error) {
	return s.opt.Stores.Store(workspace)
}

// reading gives the store to read a workspace's images from; nil if there can be none.
func (s *Images) reading(workspace string) (*store.Store, error) {
	if workspace == store.SharedWorkspace {
		return s.opt.Stores.Base()
	}
	return s.opt.Stores.Store(workspace)
}

// parseAs reads the manifest of the image d.
func parseAs(b []byte, d store.Digest) (*Manifest, error) {
	m, err := ParseManifest(b)
	if err == nil && m.Digest() != d {
		err = fault.New(fault.Corrupt, "it is the manifest of another image, %s", m.Digest().Short())
	}
	return m, err
}

// readManifest reads the local manifest of an image or, if that is missing or
// damaged, the origin's, and then keeps that.
func (s *Images) readManifest(ctx context.Context, workspace string, d store.Digest) (*Manifest, error) {
	path := s.manifestPath(workspace, d)
	b, err := os.ReadFile(path)
	var m *Manifest
	if err == nil {
		if m, err = parseAs(b, d); err == nil {
			return m, nil
		}
		s.log.Warn("the local copy of a manifest is damaged", "image", d.Short(), "error", err)
	}
	here := err
	m, _, err = s.originManifest(ctx, workspace, d)
	switch {
	case err == nil:
		return m, keep(path, m.Encode())
	case fault.Is(err, fault.NotFound) && !fault.Is(here, fault.NotFound):
		err = noCopy(here) // it is damaged here and absent there
	case fault.Is(err, fault.Corrupt):
		err = noCopy(err)
	}
	return nil, fault.Wrap(err, "read manifest", d.Short())
}

// originManifest reads the manifest that the origin has, and its version.
func (s *Images) originManifest(ctx context.Context, workspace string, d store.Digest) (*Manifest, store.Version, error) {
	st, err := s.reading(workspace)
	if err != nil {
		return nil, "", err
	}
	if st == nil {
		return nil, "", fault.New(fault.NotFound, "nothing is shared here")
	}
	b, v, err := st.GetRecord(ctx, kindManifests, d.String())
	if err != nil {
		return nil, v, err
	}
	m, err := parseAs(b, d)
	return m, v, err
}

// writeManifest makes a manifest durable at the origin, and then here. If the image is
// there already, from whatever machine, it needs what it needed and what is new:
// it may have been packed anew because an old pack was damaged.
// isNew says that there was none.
func (s *Images) writeManifest(ctx context.Context, workspace string, m *Manifest) (_ *Manifest, isNew bool, err error) {
	st, err := s.Store(workspace)
	if err != nil {
		return nil, false, err
	}
	d := m.Digest()
	for try := 0; ; try++ {
		merged := *m
		old, v, err := s.originManifest(ctx, workspace, d)
		var damaged *store.Version
		switch {
		case err == nil:
			merged = *old
			merged.Packs = slices.Concat(old.Packs, m.Packs)
		case fault.Is(err, fault.NotFound):
			v = ""
		case fault.Is(err, fault.Corrupt):
			damaged = &v
		default:
			return nil, false, err
		}
		b := merged.Encode()
		read, err := ParseManifest(b) // as everybody will read it
		if err != nil {
			return nil, false, err
		}
		if old == nil || !bytes.Equal(b, old.Encode()) {
			expect := &v
			if damaged != nil {
				expect = nil // whatever is there is no manifest
			}
			if _, err = st.PutRecord(ctx, kindManifests, d.String(), b, expect); fault.Is(err, fault.Exists) && try < 10 {
				continue // another machine has written it just now
			}
			if err != nil {
				return nil, false, err
			}
		}
		return read, old == nil, publish(s.manifestPath(workspace, d), b)
	}
}

// unwriteManifest takes back what writeManifest has just written, unless somebody
// else has written it, too.
func (s *Images) unwriteManifest(ctx context.Context, workspace string, m *Manifest, isNew bool) error {
	st, err := s.Store(workspace)
	if err != nil || !isNew {
		return err
	}
	b, _, err := st.GetRecord(ctx, kindManifests, m.Digest().String())
	if fault.Is(err, fault.NotFound) || err == nil && !bytes.Equal(b, m.Encode()) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := st.DeleteRecord(ctx, kindManifests, m.Digest().String()); err != nil {
		return err
	}
	s.forget(workspace, m.Digest())
	return nil
}

// nameFile is what the record of a name holds, and the local copy.
type nameFile struct {
	Name   string       `json:"name"`
	Digest store.Digest `json:"digest"`
}

func parseName(b []byte, name string) (store.Digest, error) {
	var f nameFile
	if err := json.Unmarshal(b, &f); err != nil || f.Name != name || f.Digest.IsZero() {
		return store.Digest{}, fault.New(fault.Corrupt, "the name %s is damaged", quote(name)).
			WithHint("Import or build the image again.")
	}
	return f.Digest, nil
}

// readName finds the image that a name leads to: at the origin, because another
// machine may have changed it. The local copy has to do if the origin does not
// answer, or has it damaged.
func (s *Images) readName(ctx context.Context, workspace, name string) (d store.Digest, err error) {
	path := s.namePath(workspace, name)
	local, localErr := os.ReadFile(path)
	if localErr == nil {
		d, localErr = parseName(local, name)
	}
	if until := s.silent.Load(); localErr == nil && until != nil && time.Now().Before(*until) {
		return d, nil
	}
	st, err := s.reading(workspace)
	if err == nil && st == nil {
		return d, fault.New(fault.NotFound, "nothing is shared here")
	}
	var b []byte
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		b, _, err = st.GetRecord(bounded, kindNames, name)
	}
	if err == nil {
		d, err = parseName(b, name)
	}
	switch {
	case err == nil:
		if !bytes.Equal(b, local) {
			err = publish(path, b)
		}
		return d, err
	case fault.Is(err, fault.NotFound):
		_ = unpublish(path)
		return d, err
	case (away(ctx, err) || fault.Is(err, fault.Corrupt)) && localErr == nil:
		s.log.Warn("the origin cannot be asked where a name leads; it is what it was", "name", name, "error", err)
		if !fault.Is(err, fault.Corrupt) {
			until := time.Now().Add(silence)
			s.silent.Store(&until)
		}
		return parseName(local, name)
	}
	return d, err
}

func (s *Images) writeName(ctx context.Context, workspace, name string, d store.Digest) error {
	st, err := s.Store(workspace)
	if err != nil {
		return err
	}
	b, err := json.Marshal(nameFile{name, d})
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if _, err := st.PutRecord(ctx, kindNames, name, b, nil); err != nil {
		return err
	}
	return publish(s.namePath(workspace, name), b)
}

func (s *Images) dropName(ctx context.Context, workspace, name string) error {
	st, err := s.Store(workspace)
	if err != nil {
		return err
	}
	if err := st.DeleteRecord(ctx, kindNames, name); err != nil {
		return err
	}
	return unpublish(s.namePath(workspace, name))
}

// listRecords gives the names of a workspace's records of a kind: the origin's, or
// the local ones if it does not answer.
func (s *Images) listRecords(ctx context.Context, workspace, kind string, local func() ([]string, error)) (l []string, err error) {
	st, err := s.reading(workspace)
	if err == nil && st == nil {
		return nil, nil
	}
	if err == nil {
		err = st.ListRecords(ctx, kind, func(name string) error {
			l = append(l, name)
			return nil
		})
	}
	if away(ctx, err) {
		s.log.Warn("the origin does not list; what is here is shown", "workspace", workspace, "kind", kind, "error", err)
		return local()
	}
	return l, err
}

// eachOf calls fn for the indices below n, several at once.
func eachOf(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recordsAtOnce)
	for i := range n {
		g.Go(func() error { return fn(ctx, i) })
	}
	return g.Wait()
}

// sharedName splits "shared/NAME".
func sharedName(workspace, name string) (string, bool) {
	if workspace == store.SharedWorkspace {
		return "", false
	}
	return strings.CutPrefix(name, store.SharedWorkspace+"/")
}
