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
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Options say what a registry consists of.
type Options struct {
	Dir    string            // copies of manifests, names and metadata; of one process at a time
	Stores *store.Workspaces // chunks, blobs and records
	Log    *slog.Logger      // nil = slog.Default()

	// InUse, if set, reports whether something runs on an image, which then cannot
	// be removed. It is called with the registry's lock held: it must not call back.
	InUse func(store.Digest) bool
	// MayShare reports whether a workspace may write to the shared one, that is
	// put images there, name them and remove them; nil = only DefaultWorkspace may,
	// the machine's owner's.
	MayShare func(workspace string) bool
}

// Images is the registry of images on one machine. All methods are safe for
// concurrent use. It starts nothing that would have to be closed.
type Images struct {
	opt Options
	log *slog.Logger

	// changes is held while names and manifests change, and while Remove deletes
	// what no manifest names: a manifest that appeared in between would lose its packs.
	changes chan struct{}
	silent  atomic.Pointer[time.Time] // until when an origin that did not answer is left alone
	loaded  struct {
		sync.Mutex
		images  map[loadedKey]*Image
		loading map[loadedKey]*loading
	}
	native  nativeImages
	sharing sharings
	touched touched
}

// loading is the reading of a manifest that several may wait for.
type loading struct {
	done   chan struct{}
	err    error // valid when done is closed, as is
	gaveUp bool  // the reader's context ended: that says nothing to others
}

type loadedKey struct {
	workspace string
	digest    store.Digest
}

// Open opens the registry in a directory, and makes it if there is none.
func Open(_ context.Context, opt Options) (*Images, error) {
	if opt.Dir == "" || opt.Stores == nil {
		return nil, fault.New(fault.Invalid, "open images: a directory and stores are needed")
	}
	s := &Images{opt: opt, log: opt.Log, changes: make(chan struct{}, 1)}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.opt.MayShare == nil {
		s.opt.MayShare = func(workspace string) bool { return workspace == DefaultWorkspace }
	}
	s.loaded.images, s.loaded.loading = map[loadedKey]*Image{}, map[loadedKey]*loading{}
	s.sharing = sharings{turn: make(chan struct{}, 1), last: map[store.Digest]map[store.Digest]Sharing{}}
	s.native.held, s.native.written = map[string]int{}, map[string]struct{}{}
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, store.DiskError(err, "open images", opt.Dir)
	}
	workspaces, err := s.workspaces()
	if err != nil {
		return nil, err
	}
	for _, w := range workspaces {
		// What a process that died was writing.
		for _, dir := range []string{"names", "manifests", "meta", "native"} {
			if err := sweep(filepath.Join(s.opt.Dir, w, dir)); err != nil {
				return nil, fault.Wrap(err, "open images", w)
			}
		}
	}
	return s, nil
}

// change waits for its turn to change names and manifests.
func (s *Images) change(ctx context.Context) (done func(), err error) {
	select {
	case s.changes <- struct{}{}:
		return func() { <-s.changes }, nil
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), "change", "images")
	}
}

// workspaces lists those with something on this machine.
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

// digests lists the images of a workspace.
func (s *Images) digests(ctx context.Context, workspace string) ([]store.Digest, error) {
	names, err := s.listRecords(ctx, workspace, kindManifests, func() (l []string, err error) {
		here, err := s.localDigests(workspace)
		for _, d := range here {
			l = append(l, d.String())
		}
		return l, err
	})
	if err != nil {
		return nil, fault.Wrap(err, "list images", "")
	}
	var l []store.Digest
	for _, n := range names {
		if d, err := store.ParseDigest(n); err == nil {
			l = append(l, d)
		}
	}
	slices.SortFunc(l, func(a, b store.Digest) int { return bytes.Compare(a[:], b[:]) })
	return l, nil
}

// localDigests lists the images of a workspace with a copy of the manifest here.
func (s *Images) localDigests(workspace string) (l []store.Digest, err error) {
	files, err := os.ReadDir(filepath.Join(s.opt.Dir, workspace, "manifests"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, "list images", "")
	}
	for _, f := range files {
		if digits, ok := strings.CutSuffix(f.Name(), ".json"); ok {
			if d, err := store.ParseDigest(digits); err == nil {
				l = append(l, d)
			}
		}
	}
	return l, nil
}

// remember returns the one Image of a digest.
func (s *Images) remember(workspace string, d store.Digest, m *Manifest) (*Image, error) {
	st, err := s.opt.Stores.Store(workspace)
	if err != nil {
		return nil, err
	}
	s.loaded.Lock()
	defer s.loaded.Unlock()
	key := loadedKey{workspace, d}
	img := s.loaded.images[key]
	if img == nil {
		img = newImage(s, st, workspace, d, m)
		s.loaded.images[key] = img
	}
	return img, nil
}

// Get finds an image by name, by digest, or by at least 8 digits of it; "shared/NAME"
// is one of the shared workspace, and a digest may be, too. Errors:
// fault.NotFound with a hint at what there is; fault.Corrupt if its manifest is
// damaged here and at the origin, or is not the workspace's; fault.Unavailable if the
// origin does not answer and nothing is known of it here.
func (s *Images) Get(ctx context.Context, ref Ref) (*Image, error) {
	t, err := s.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	img, err := s.load(ctx, t.workspace, t.digest)
	if fault.Is(err, fault.NotFound) && t.name == "" && t.workspace != store.SharedWorkspace {
		var other error
		if img, other = s.load(ctx, store.SharedWorkspace, t.digest); other == nil {
			err = nil
		}
	}
	if fault.Is(err, fault.NotFound) {
		if t.name != "" {
			return nil, fault.Wrap(noCopy(err), "image", ref.Name)
		}
		return nil, s.notFound(ctx, ref)
	}
	if err != nil {
		return nil, fault.Wrap(err, "image", ref.Name)
	}
	s.touch(img.Workspace, img.Digest)
	return img, nil
}

// load gives the image of a digest. Of several who ask at once one reads the manifest.
func (s *Images) load(ctx context.Context, workspace string, d store.Digest) (*Image, error) {
	key := loadedKey{workspace, d}
	for {
		s.loaded.Lock()
		img, l := s.loaded.images[key], s.loaded.loading[key]
		mine := img == nil && l == nil
		if mine {
			l = &loading{done: make(chan struct{})}
			s.loaded.loading[key] = l
		}
		s.loaded.Unlock()
		switch {
		case img != nil:
			return img, nil
		case mine:
			return s.loadNow(ctx, key, l)
		}
		select {
		case <-l.done:
			if l.err != nil && !l.gaveUp {
				return nil, l.err
			}
		case <-ctx.Done():
			return nil, fault.Wrap(ctx.Err(), "read manifest", d.Short())
		}
	}
}

// loadNow reads the manifest for all who wait for l.
func (s *Images) loadNow(ctx context.Context, key loadedKey, l *loading) (img *Image, err error) {
	defer func() {
		l.err, l.gaveUp = err, ctx.Err() != nil
		s.loaded.Lock()
		delete(s.loaded.loading, key)
		s.loaded.Unlock()
		close(l.done)
	}()
	m, err := s.readManifest(ctx, key.workspace, key.digest)
	if err != nil {
		return nil, err
	}
	return s.remember(key.workspace, key.digest, m)
}

// Named is an image with one of its names.
type Named struct {
	Name string // empty for an image without a name
	*Image
}

// List gives a workspace's images, whichever machine made them: one entry for each
// name, in their order, then the images without a name. Images that cannot be
// read are left out, and logged.
func (s *Images) List(ctx context.Context, workspace string) ([]Named, error) {
	if err := checkWorkspace(workspace); err != nil {
		return nil, err
	}
	names, err := s.names(ctx, workspace)
	if err != nil {
		return nil, err
	}
	all, err := s.digests(ctx, workspace)
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
	l := make([]Named, len(names))
	err = eachOf(ctx, len(names), func(ctx context.Context, i int) error {
		n := names[i]
		img, err := s.load(ctx, workspace, n.Digest)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.log.Warn("an image cannot be read", "name", n.Name, "image", n.Digest.Short(), "error", err)
			return nil
		}
		l[i] = Named{n.Name, img}
		return nil
	})
	return slices.DeleteFunc(l, func(n Named) bool { return n.Image == nil }), err
}

// Tag makes name lead to an image, from wherever it led. The image and its name are of
// one workspace.
func (s *Images) Tag(ctx context.Context, ref Ref, name string) error {
	if err := CheckRef(ref.Workspace, name); err != nil {
		return err
	}
	if err := s.mayWrite(ref.Workspace); err != nil {
		return err
	}
	done, err := s.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	img, err := s.Get(ctx, ref)
	if err != nil {
		return err
	}
	if img.Workspace != ref.Workspace {
		return fault.New(fault.Invalid, "%s is an image of the %s workspace: it has its name there", quote(ref.Name), img.Workspace)
	}
	return s.writeName(ctx, ref.Workspace, name, img.Digest)
}

// mayWrite keeps those from writing to the shared workspace who may not: requests for
// that workspace itself come from whoever may be everybody.
func (s *Images) mayWrite(workspace string) error {
	if workspace != store.SharedWorkspace || s.opt.MayShare(workspace) {
		return nil
	}
	return fault.New(fault.Invalid, "the %s workspace cannot be written to directly", workspace).
		WithHint("Make the image in your own workspace; then `brisk image share NAME`.")
}
