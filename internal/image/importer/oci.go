package importer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// Only images for this platform are imported.
const (
	wantOS   = "linux"
	wantArch = "amd64"
)

// maxDocument bounds a manifest, index or configuration, in bytes; registries accept 4 MiB.
const maxDocument = 8 << 20

// Bounds of indexes within indexes, each of which may name thousands of others.
const (
	maxIndexDepth = 4
	maxIndexes    = 100
	maxCandidates = 10_000 // images in them, counted as often as they are named
)

// container is a container image found at a path, before any layer is read.
type container struct {
	id     v1.Hash // SHA-256 of the configuration, which names every layer's content
	config image.Config
	layers []layer
}

// layer is one layer as it is stored.
type layer struct {
	open      func(context.Context) (io.ReadCloser, error) // the stored bytes
	size      int64                                        // of them
	digest    v1.Hash                                      // of them; zero where the format does not say
	diffID    v1.Hash                                      // digest of the uncompressed tar
	mediaType types.MediaType
}

// layout is an OCI image layout, in a directory or an archive.
type layout struct {
	// open reads a file by its slash-separated path; NotFound if there is none. The size is in bytes.
	open func(name string) (io.ReadCloser, int64, error)
}

func directoryLayout(dir string) layout {
	return layout{func(name string) (io.ReadCloser, int64, error) {
		f, err := os.Open(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fault.New(fault.Corrupt, "%s is not a regular file", name)
		}
		if err != nil {
			f.Close()
			return nil, 0, err
		}
		return f, info.Size(), nil
	}}
}

func archiveLayout(a *archive) layout {
	return layout{func(name string) (io.ReadCloser, int64, error) {
		r, err := a.open(name)
		if err != nil {
			return nil, 0, err
		}
		return io.NopCloser(r), r.Size(), nil
	}}
}

// document reads a small file whole.
func (l layout) document(name string) ([]byte, error) {
	r, size, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > maxDocument {
		return nil, fault.New(fault.Invalid, "%s has %d bytes, and more than %d cannot be read", name, size, maxDocument)
	}
	b, err := io.ReadAll(io.LimitReader(r, maxDocument))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}

func blobPath(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// imageSource is where the parts of a container image lie by their descriptors: a layout or a registry.
type imageSource interface {
	// manifest and config read small documents. Their digests are checked by the caller.
	manifest(ctx context.Context, d v1.Descriptor) ([]byte, error)
	config(ctx context.Context, d v1.Descriptor) ([]byte, error)
	// layer looks for a layer; it is read later, several at a time. size is what is to be read.
	layer(d v1.Descriptor) (open func(context.Context) (io.ReadCloser, error), size int64, err error)
}

func (l layout) manifest(_ context.Context, d v1.Descriptor) ([]byte, error) {
	return l.document(blobPath(d.Digest))
}

func (l layout) config(_ context.Context, d v1.Descriptor) ([]byte, error) {
	return l.document(blobPath(d.Digest))
}

func (l layout) layer(d v1.Descriptor) (func(context.Context) (io.ReadCloser, error), int64, error) {
	name := blobPath(d.Digest)
	r, size, err := l.open(name)
	if err != nil {
		return nil, 0, err
	}
	return func(context.Context) (io.ReadCloser, error) {
		r, _, err := l.open(name)
		return r, err
	}, size, r.Close()
}

// document reads what a descriptor names and checks its digest.
func document(ctx context.Context, read func(context.Context, v1.Descriptor) ([]byte, error), d v1.Descriptor, what string) ([]byte, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, fault.New(fault.Invalid, "the digest %s of its %s is not a SHA-256", d.Digest, what)
	}
	if d.Size > maxDocument {
		return nil, fault.New(fault.Invalid, "its %s has %d bytes, and more than %d cannot be read", what, d.Size, maxDocument)
	}
	b, err := read(ctx, d)
	if fault.Is(err, fault.NotFound) {
		return nil, fault.New(fault.Corrupt, "its %s %s is missing", what, d.Digest)
	}
	if err != nil {
		return nil, err
	}
	if sum, _, _ := v1.SHA256(bytes.NewReader(b)); sum != d.Digest {
		return nil, mismatch(what, d.Digest, sum)
	}
	return b, nil
}

func mismatch(what string, want, got v1.Hash) error {
	return fault.New(fault.Corrupt, "its %s should have the digest %s and has %s", what, want, got)
}

// container finds an image of the layout: the one of that name, or the only one if tag is "".
func (l layout) container(ctx context.Context, tag string) (*container, error) {
	raw, err := l.document("index.json")
	if fault.Is(err, fault.NotFound) {
		return nil, fault.New(fault.Corrupt, "it is an OCI layout without index.json")
	}
	if err != nil {
		return nil, err
	}
	return fromIndex(ctx, l, raw, "index.json", tag)
}

// candidate is an image that an index names, and how people call it.
type candidate struct {
	v1.Descriptor
	name string
}

func (c candidate) called() string {
	if c.name != "" {
		return c.name
	}
	return c.Digest.String()
}

// fromIndex finds the image of an index that fits this machine, and tag if that is not "".
func fromIndex(ctx context.Context, s imageSource, raw []byte, what, tag string) (*container, error) {
	found, err := (&finder{source: s, found: map[v1.Hash][]candidate{}}).find(ctx, raw, what, 0)
	if err != nil {
		return nil, err
	}
	d, err := choose(found, tag)
	if err != nil {
		return nil, err
	}
	raw, err = document(ctx, s.manifest, d, "manifest")
	if err != nil {
		return nil, err
	}
	return fromManifest(ctx, s, raw, d.Digest)
}

// finder looks for images in an index.
type finder struct {
	source imageSource
	found  map[v1.Hash][]candidate // in the nested indexes that were read
}

// find lists the images that an index names, nested indexes included.
func (f *finder) find(ctx context.Context, raw []byte, what string, depth int) ([]candidate, error) {
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, fault.New(fault.Corrupt, "its %s does not read: %w", what, err)
	}
	if depth > maxIndexDepth {
		return nil, fault.New(fault.Invalid, "its indexes are nested more than %d deep", maxIndexDepth)
	}
	var found []candidate
	for _, d := range index.Manifests {
		name := d.Annotations["io.containerd.image.name"]
		if name == "" {
			name = d.Annotations["org.opencontainers.image.ref.name"]
		}
		switch {
		case d.Annotations["vnd.docker.reference.type"] == "attestation-manifest":
			// What buildkit says about how it built the image.
		case d.MediaType.IsIndex():
			inner, err := f.nested(ctx, d, depth+1)
			if err != nil {
				return nil, err
			}
			for _, c := range inner {
				if c.name == "" {
					c.name = name
				}
				found = append(found, c)
			}
		case d.MediaType.IsImage():
			found = append(found, candidate{d, name})
		}
		if len(found) > maxCandidates {
			return nil, fault.New(fault.Invalid, "it names more than %d images", maxCandidates)
		}
	}
	return found, nil
}

// nested is find for an index within another. It reads each only once, however often it is named.
func (f *finder) nested(ctx context.Context, d v1.Descriptor, depth int) ([]candidate, error) {
	if known, ok := f.found[d.Digest]; ok {
		return known, nil
	}
	if len(f.found) >= maxIndexes {
		return nil, fault.New(fault.Invalid, "it has more than %d indexes within indexes", maxIndexes)
	}
	raw, err := document(ctx, f.source.manifest, d, "index")
	if err != nil {
		return nil, err
	}
	found, err := f.find(ctx, raw, "index "+d.Digest.String(), depth)
	f.found[d.Digest] = found
	return found, err
}

// choose picks the image for this platform, of those that are called so. Two
// descriptors of one manifest are one image.
func choose(found []candidate, tag string) (v1.Descriptor, error) {
	if len(found) == 0 {
		return v1.Descriptor{}, fault.New(fault.Invalid, "it holds no image")
	}
	if tag != "" {
		var names []string
		all := found
		found = nil
		for _, c := range all {
			names = append(names, c.called())
			if called(c.name, tag) || c.Digest.String() == tag {
				found = append(found, c)
			}
		}
		if len(found) == 0 {
			return v1.Descriptor{}, noSuchImage(tag, names)
		}
	}
	var fit []candidate
	var names, platforms []string
	seen := map[v1.Hash]bool{}
	for _, c := range found {
		if seen[c.Digest] {
			continue
		}
		seen[c.Digest] = true
		if !fits(c.Platform) {
			platforms = append(platforms, c.Platform.String())
			continue
		}
		fit = append(fit, c)
		names = append(names, c.called())
	}
	switch len(fit) {
	case 0:
		return v1.Descriptor{}, wrongPlatform(listed(platforms))
	case 1:
		return fit[0].Descriptor, nil
	}
	return v1.Descriptor{}, severalImages(names)
}

func fits(p *v1.Platform) bool {
	return p == nil || (p.OS == "" || p.OS == wantOS) && (p.Architecture == "" || p.Architecture == wantArch)
}

func wrongPlatform(have string) error {
	return fault.New(fault.Invalid, "the image is for %s, and this machine runs %s/%s", have, wantOS, wantArch).
		WithHint("Build or pull it for the platform %s/%s.", wantOS, wantArch)
}

// listed are names for people, who need not read thousands.
func listed(names []string) string {
	const most = 20
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

func severalImages(names []string) error {
	return fault.New(fault.Invalid, "it holds %d images: %s", len(names), listed(names)).
		WithHint("Say with --tag which one you want.")
}

func noSuchImage(tag string, names []string) error {
	return fault.New(fault.NotFound, "it holds no image %q, but %s", tag, strings.Join(slices.Compact(names), ", "))
}

// called reports whether an image of that name may be asked for as tag: whole, or by
// what follows the repository.
func called(name, tag string) bool { return name == tag || strings.HasSuffix(name, ":"+tag) }

// fromManifest reads an image whose manifest, of that digest, is raw.
func fromManifest(ctx context.Context, s imageSource, raw []byte, digest v1.Hash) (*container, error) {
	var manifest v1.Manifest
	if err := json.Unmarshal(raw, &manifest); err != nil {
		return nil, fault.New(fault.Corrupt, "its manifest %s does not read: %w", digest, err)
	}
	if mt := manifest.Config.MediaType; mt != types.OCIConfigJSON && mt != types.DockerConfigJSON && mt != "" {
		return nil, fault.New(fault.Invalid, "it is an artifact of type %s, not a container image", mt)
	}
	rawConfig, err := document(ctx, s.config, manifest.Config, "configuration")
	if err != nil {
		return nil, err
	}
	c, diffIDs, err := parseConfig(rawConfig)
	if err != nil {
		return nil, err
	}
	if len(diffIDs) != len(manifest.Layers) {
		return nil, fault.New(fault.Corrupt, "its manifest lists %d layers and its configuration %d", len(manifest.Layers), len(diffIDs))
	}
	for i, d := range manifest.Layers {
		if strings.HasSuffix(string(d.MediaType), "+encrypted") {
			return nil, fault.New(fault.Invalid, "its layer %d is encrypted", i+1)
		}
		if d.Digest.Algorithm != "sha256" {
			return nil, fault.New(fault.Invalid, "the digest %s of its layer %d is not a SHA-256", d.Digest, i+1)
		}
		if d.Size < 0 || d.Size > image.DefaultMaxBytes {
			return nil, fault.New(fault.Invalid, "its layer %d has %d bytes, which cannot be", i+1, d.Size)
		}
		open, size, err := s.layer(d)
		if fault.Is(err, fault.NotFound) {
			if len(d.URLs) > 0 || !d.MediaType.IsDistributable() {
				return nil, fault.New(fault.Invalid, "its layer %d, %s, has to be fetched from elsewhere (%s)", i+1, d.Digest, d.MediaType)
			}
			return nil, fault.New(fault.Corrupt, "its layer %d, %s, is missing", i+1, d.Digest)
		}
		if err != nil {
			return nil, err
		}
		if d.Size > 0 && size != d.Size {
			return nil, fault.New(fault.Invalid, "its layer %d, %s, should have %d bytes and has %d", i+1, d.Digest, d.Size, size)
		}
		c.layers = append(c.layers, layer{open: open, size: size, digest: d.Digest, diffID: diffIDs[i], mediaType: d.MediaType})
	}
	return c, nil
}

// parseConfig reads an image configuration.
func parseConfig(raw []byte) (*container, []v1.Hash, error) {
	id, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return nil, nil, err
	}
	var f v1.ConfigFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, nil, fault.New(fault.Corrupt, "its configuration does not read: %w", err)
	}
	if p := (&v1.Platform{OS: f.OS, Architecture: f.Architecture}); !fits(p) {
		return nil, nil, wrongPlatform(p.String())
	}
	for _, h := range f.RootFS.DiffIDs {
		if h.Algorithm != "sha256" {
			return nil, nil, fault.New(fault.Invalid, "the digest %q of a layer is not a SHA-256", h)
		}
	}
	return &container{id: id, config: image.Config{
		Env: f.Config.Env, Entrypoint: f.Config.Entrypoint, Cmd: f.Config.Cmd,
		Workdir: f.Config.WorkingDir, User: f.Config.User, Labels: f.Config.Labels,
	}}, f.RootFS.DiffIDs, nil
}

// dockerSave is one element of the manifest.json that `docker save` writes.
type dockerSave struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// dockerContainer finds an image in a `docker save` archive: the one of that name, or
// the only one if tag is "".
func dockerContainer(a *archive, tag string) (*container, error) {
	l := archiveLayout(a)
	raw, err := l.document("manifest.json")
	if err != nil {
		return nil, err
	}
	var saved []dockerSave
	if err := json.Unmarshal(raw, &saved); err != nil {
		return nil, fault.New(fault.Corrupt, "its manifest.json does not read: %w", err)
	}
	s, err := chooseSaved(saved, tag)
	if err != nil {
		return nil, err
	}
	rawConfig, err := l.document(memberName(s.Config))
	if fault.Is(err, fault.NotFound) {
		return nil, fault.New(fault.Corrupt, "its configuration %s is missing", s.Config)
	}
	if err != nil {
		return nil, err
	}
	c, diffIDs, err := parseConfig(rawConfig)
	if err != nil {
		return nil, err
	}
	if want := digestInName(s.Config); want != "" && want != c.id.Hex {
		return nil, mismatch("configuration", v1.Hash{Algorithm: "sha256", Hex: want}, c.id)
	}
	if len(diffIDs) != len(s.Layers) {
		return nil, fault.New(fault.Corrupt, "its manifest lists %d layers and its configuration %d", len(s.Layers), len(diffIDs))
	}
	for i, name := range s.Layers {
		r, err := a.open(memberName(name))
		if fault.Is(err, fault.NotFound) {
			return nil, fault.New(fault.Corrupt, "its layer %d, %s, is missing", i+1, name)
		}
		if err != nil {
			return nil, err
		}
		c.layers = append(c.layers, layer{
			open: func(context.Context) (io.ReadCloser, error) {
				return io.NopCloser(io.NewSectionReader(r, 0, r.Size())), nil
			},
			size:   r.Size(),
			diffID: diffIDs[i],
		})
	}
	return c, nil
}

// chooseSaved picks the image that is called so.
func chooseSaved(saved []dockerSave, tag string) (dockerSave, error) {
	if len(saved) == 0 {
		return dockerSave{}, fault.New(fault.Invalid, "it holds no image")
	}
	var names []string
	for _, s := range saved {
		if tag != "" && (digestInName(s.Config) == strings.TrimPrefix(tag, "sha256:") ||
			slices.ContainsFunc(s.RepoTags, func(name string) bool { return called(name, tag) })) {
			return s, nil
		}
		if len(s.RepoTags) == 0 {
			s.RepoTags = []string{s.Config}
		}
		names = append(names, strings.Join(s.RepoTags, " = "))
	}
	switch {
	case tag != "":
		return dockerSave{}, noSuchImage(tag, names)
	case len(saved) > 1:
		return dockerSave{}, severalImages(names)
	}
	return saved[0], nil
}

// digestInName gives the SHA-256 that a configuration's name in a `docker save`
// archive consists of ("HEX.json", "sha256:HEX", "blobs/sha256/HEX"), or "".
func digestInName(name string) string {
	name = strings.TrimSuffix(memberName(name), ".json")
	name = strings.TrimPrefix(name, "blobs/sha256/")
	name = strings.TrimPrefix(name, "sha256:")
	if h, err := v1.NewHash("sha256:" + name); err == nil {
		return h.Hex
	}
	return ""
}

// isLayout reports whether a directory is, or was meant to be, an OCI layout.
func isLayout(dir string) (bool, error) {
	info, err := os.Lstat(filepath.Join(dir, "oci-layout"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Mode().IsRegular(), err
}
