package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Options say what a registry consists of.
type Options struct {
	Dir    string       // local manifests, names and copies of metadata; of one process at a time
	Store  *store.Store // chunks and blobs
	Origin store.Origin // where manifests go for others to read, the store's own origin; nil = nowhere
	Log    *slog.Logger // nil = slog.Default()

	// InUse, if set, reports whether something runs on an image, which then cannot
	// be removed. It is called with the registry's lock held: it must not call back.
	InUse func(store.Digest) bool
	// Keep, if set, keeps packs and blobs that others than images refer to when
	// an image's are deleted.
	Keep func(store.Digest) bool
}

// Images is the registry of images on one machine. All methods are safe for
// concurrent use. It starts nothing that would have to be closed.
type Images struct {
	opt Options
	log *slog.Logger

	// changes is held while names and manifests change, and while Remove deletes
	// what no manifest names: a manifest that appeared in between would lose its packs.
	changes sync.Mutex
	loaded  struct {
		sync.Mutex
		images map[loadedKey]*Image
	}
}

type loadedKey struct {
	workspace string
	digest    store.Digest
}

// Result says what a Write did.
type Result struct {
	Files       int64 // of all kinds; hard links count once
	Bytes       int64 // sum of the files' sizes
	Chunks      int64 // distinct
	NewChunks   int64 // that the store did not have
	NewBytes    int64 // in them
	StoredBytes int64 // what these take in packs, compressed
	MetaBytes   int64 // of EROFS metadata
}

// Open opens the registry in a directory, and makes it if there is none. Copies
// of manifests that the origin lacks, because a process died, are put there.
func Open(ctx context.Context, opt Options) (*Images, error) {
	if opt.Dir == "" || opt.Store == nil {
		return nil, fault.New(fault.Invalid, "open images: a directory and a store are needed")
	}
	s := &Images{opt: opt, log: opt.Log}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.loaded.images = map[loadedKey]*Image{}
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, store.DiskError(err, "open images", opt.Dir)
	}
	workspaces, err := s.workspaces()
	if err != nil {
		return nil, err
	}
	for _, w := range workspaces {
		if err := s.openWorkspace(ctx, w); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// openWorkspace removes what a process that died was writing, and completes the origin.
func (s *Images) openWorkspace(ctx context.Context, workspace string) error {
	for _, dir := range []string{"names", "manifests", "meta"} {
		if err := sweep(filepath.Join(s.opt.Dir, workspace, dir)); err != nil {
			return fault.Wrap(err, "open images", workspace)
		}
	}
	all, err := s.digests(workspace)
	if err != nil || s.opt.Origin == nil {
		return err
	}
	have := map[string]bool{}
	err = s.opt.Origin.List(ctx, originPrefix(workspace), func(key string, _ int64) error {
		have[key] = true
		return nil
	})
	if err != nil {
		s.log.Warn("the origin does not list its manifests", "error", err)
		return nil
	}
	for _, d := range all {
		if have[originKey(workspace, d)] {
			continue
		}
		b, err := os.ReadFile(s.manifestPath(workspace, d))
		if err == nil {
			_, err = parseAs(b, d)
		}
		if err == nil {
			err = s.opt.Origin.Put(ctx, originKey(workspace, d), bytes.NewReader(b))
		}
		if err != nil {
			s.log.Warn("a manifest cannot be completed at the origin", "image", d.Short(), "error", err)
		}
	}
	return nil
}

func (s *Images) workspaces() ([]string, error) {
	dirs, err := os.ReadDir(s.opt.Dir)
	if err != nil {
		return nil, fault.Wrap(err, "open images", s.opt.Dir)
	}
	var l []string
	for _, d := range dirs {
		if d.IsDir() && checkWorkspace(d.Name()) == nil {
			l = append(l, d.Name())
		}
	}
	return l, nil
}

func (s *Images) manifestPath(workspace string, d store.Digest) string {
	return filepath.Join(s.opt.Dir, workspace, "manifests", d.String()+".json")
}

func (s *Images) blobPath(workspace string, d store.Digest) string {
	return filepath.Join(s.opt.Dir, workspace, "meta", d.String())
}

// digests lists the images of a workspace, sorted.
func (s *Images) digests(workspace string) ([]store.Digest, error) {
	files, err := os.ReadDir(filepath.Join(s.opt.Dir, workspace, "manifests"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, "list images", "")
	}
	var l []store.Digest
	for _, f := range files {
		if digits, ok := strings.CutSuffix(f.Name(), ".json"); ok {
			if d, err := store.ParseDigest(digits); err == nil {
				l = append(l, d)
			}
		}
	}
	return l, nil
}

// Write makes an image of a tree whose chunks are in batch or in the store
// already. It ends the batch: when it returns, that is committed or aborted. The
// image is durable then, and name, unless empty, leads to it. Equal content gives
// the image that is there already.
func (s *Images) Write(ctx context.Context, t *Tree, cfg Config, batch *store.Batch, workspace, name string) (*Image, Result, error) {
	defer batch.Abort() // of no effect after Commit
	if err := CheckRef(workspace, name); err != nil {
		return nil, Result{}, err
	}
	release := s.opt.Store.Hold()
	defer release()
	m, res, err := s.store(ctx, t, cfg, batch, workspace)
	if err != nil {
		return nil, res, fault.Wrap(err, "write image", name)
	}
	img, err := s.record(ctx, m, workspace, name)
	return img, res, fault.Wrap(err, "write image", name)
}

// store puts everything that a manifest names into the store.
func (s *Images) store(ctx context.Context, t *Tree, cfg Config, batch *store.Batch, workspace string) (*Manifest, Result, error) {
	meta, dev, sums, err := encodeTree(t)
	if err != nil {
		return nil, Result{}, err
	}
	for _, c := range dev.chunks {
		if err := batch.Use(c); err != nil {
			return nil, Result{}, err
		}
	}
	written, err := batch.Commit(ctx)
	if err != nil {
		return nil, Result{}, err
	}
	m := &Manifest{
		Version: ManifestVersion, Config: cfg.clean(),
		Packs: written.Packs, DeviceBlocks: dev.blocks(), Files: sums.files, Bytes: sums.bytes, Created: time.Now(),
	}
	m.Meta.Size, m.Chunks.Count = int64(len(meta.Bytes)), int64(len(dev.chunks))
	if m.Meta.Digest, err = s.opt.Store.PutBlob(ctx, meta.Bytes); err != nil {
		return nil, Result{}, err
	}
	table := encodeTable(dev.chunks)
	if m.Chunks.Digest, err = s.opt.Store.PutBlob(ctx, table); err != nil {
		return nil, Result{}, err
	}
	// Local copies, since the image is likely to be used soon. They are checked
	// before use, so nothing depends on them.
	for d, b := range map[store.Digest][]byte{m.Meta.Digest: meta.Bytes, m.Chunks.Digest: table} {
		if err := publish(s.blobPath(workspace, d), b); err != nil {
			return nil, Result{}, err
		}
	}
	return m, Result{
		Files: m.Files, Bytes: m.Bytes, Chunks: m.Chunks.Count, MetaBytes: m.Meta.Size,
		NewChunks: int64(written.NewChunks), NewBytes: int64(written.NewBytes), StoredBytes: int64(written.StoredBytes),
	}, nil
}

// record makes the manifest durable, here and then at the origin, and then the name.
func (s *Images) record(ctx context.Context, m *Manifest, workspace, name string) (*Image, error) {
	d := m.Digest()
	s.changes.Lock()
	defer s.changes.Unlock()
	replace := false
	if old, err := s.readManifest(ctx, workspace, d); err == nil {
		// The same content again. It may have been packed anew, because an old
		// pack was damaged; the image needs what it needed and what is new.
		packs := len(old.Packs)
		old.Packs = append(slices.Clone(old.Packs), m.Packs...)
		b := old.Encode()
		if m, err = ParseManifest(b); err != nil {
			return nil, err
		}
		replace = len(m.Packs) != packs
	}
	b := m.Encode()
	m, err := ParseManifest(b) // as everybody will read it
	if err != nil {
		return nil, err
	}
	if err := publish(s.manifestPath(workspace, d), b); err != nil {
		return nil, err
	}
	if err := s.putOrigin(ctx, workspace, d, b, replace); err != nil {
		return nil, err
	}
	if name != "" {
		if err := s.writeName(workspace, name, d); err != nil {
			return nil, err
		}
	}
	return s.remember(workspace, d, m), nil
}

// remember returns the one Image of a digest.
func (s *Images) remember(workspace string, d store.Digest, m *Manifest) *Image {
	s.loaded.Lock()
	defer s.loaded.Unlock()
	key := loadedKey{workspace, d}
	img := s.loaded.images[key]
	if img == nil {
		img = newImage(s, workspace, d, m)
		s.loaded.images[key] = img
	}
	return img
}

// Get finds an image by name, by digest, or by at least 8 digits of it. Errors:
// fault.NotFound with a hint at what there is; fault.Corrupt if its manifest is
// damaged here and at the origin.
func (s *Images) Get(ctx context.Context, ref Ref) (*Image, error) {
	d, name, err := s.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	img, err := s.load(ctx, ref.Workspace, d)
	if fault.Is(err, fault.NotFound) {
		if name != "" {
			return nil, fault.Wrap(noCopy(err), "image", name)
		}
		return nil, s.notFound(ref)
	}
	return img, fault.Wrap(err, "image", ref.Name)
}

func (s *Images) load(ctx context.Context, workspace string, d store.Digest) (*Image, error) {
	s.loaded.Lock()
	img := s.loaded.images[loadedKey{workspace, d}]
	s.loaded.Unlock()
	if img != nil {
		return img, nil
	}
	m, err := s.readManifest(ctx, workspace, d)
	if err != nil {
		return nil, err
	}
	return s.remember(workspace, d, m), nil
}

// Named is an image with one of its names.
type Named struct {
	Name string // empty for an image without a name
	*Image
}

// List gives a workspace's images: one entry for each name, in their order, then
// the images without a name. Images that cannot be read are left out, and logged.
func (s *Images) List(ctx context.Context, workspace string) ([]Named, error) {
	if err := checkWorkspace(workspace); err != nil {
		return nil, err
	}
	names, err := s.names(workspace)
	if err != nil {
		return nil, err
	}
	all, err := s.digests(workspace)
	if err != nil {
		return nil, err
	}
	named := map[store.Digest]bool{}
	for _, n := range names {
		named[n.Digest] = true
	}
	for _, d := range all {
		if !named[d] {
			names = append(names, nameFile{"", d})
		}
	}
	var l []Named
	for _, n := range names {
		img, err := s.load(ctx, workspace, n.Digest)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err != nil {
			s.log.Warn("an image cannot be read", "name", n.Name, "image", n.Digest.Short(), "error", err)
			continue
		}
		l = append(l, Named{n.Name, img})
	}
	return l, nil
}

// Tag makes name lead to an image, from wherever it led.
func (s *Images) Tag(ctx context.Context, ref Ref, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	img, err := s.Get(ctx, ref)
	if err != nil {
		return err
	}
	return s.writeName(ref.Workspace, name, img.Digest)
}

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
		if !keep[f.Name()] {
			os.Remove(filepath.Join(dir, f.Name()))
		}
	}
}
