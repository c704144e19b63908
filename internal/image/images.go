package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

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
	native nativeImages
}

type loadedKey struct {
	workspace string
	digest    store.Digest
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
	s.native.held, s.native.written = map[string]int{}, map[string]struct{}{}
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
	for _, dir := range []string{"names", "manifests", "meta", "native"} {
		if err := sweep(filepath.Join(s.opt.Dir, workspace, dir)); err != nil {
			return fault.Wrap(err, "open images", workspace)
		}
	}
	all, err := s.digests(workspace)
	if err != nil || s.opt.Origin == nil {
		return err
	}
	have := map[string]bool{}
	err = s.opt.Origin.List(ctx, originPrefix(workspace), func(o store.Object) error {
		have[o.Key] = true
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
	d, name, err := s.resolve(ref)
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
	path := s.manifestPath(workspace, d)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		// It came from the origin: an image of this machine's from now on.
		if err := publish(path, m.Encode()); err != nil {
			return nil, err
		}
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
