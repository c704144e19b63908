package importer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/registry"
	"brisk.dev/brisk/internal/store"
)

// PullRequest asks for an image from a registry.
type PullRequest struct {
	Ref       string // as docker takes it: "python:3.12", "localhost:5000/app@sha256:..."
	Workspace string
	Name      string         // of the image; "" = none
	Insecure  bool           // http and untrusted certificates are allowed
	Auth      *registry.Auth // nil: those of the user whom the server runs as, for the default workspace; none for others
}

// Pull makes an image of a container image in a registry. Nothing is downloaded
// that an earlier import has read and that is still in the store. Progress counts
// the layers' compressed bytes. Errors: those of Import, and of package registry.
func (im *Importer) Pull(ctx context.Context, r PullRequest, progress Progress) (Report, error) {
	began := time.Now()
	report, err := im.pull(ctx, r, progress)
	if err != nil {
		return Report{}, fault.Wrap(err, "pull", r.Ref)
	}
	report.Name = r.Name
	report.MS = float64(time.Since(began).Microseconds()) / 1000
	return report, nil
}

func (im *Importer) pull(ctx context.Context, r PullRequest, progress Progress) (Report, error) {
	if err := image.CheckRef(r.Workspace, r.Name); err != nil {
		return Report{}, err
	}
	ref, err := registry.ParseRef(r.Ref, r.Insecure)
	if err != nil {
		return Report{}, err
	}
	to := Request{Workspace: r.Workspace, Name: r.Name}
	// What a digest names never changes: nobody has to be asked.
	pinned := pullKey(r.Workspace, ref.Name())
	if _, err := v1.NewHash(ref.Identifier()); err == nil {
		if report, ok, err := im.recall(ctx, to, pinned); ok || err != nil {
			report.Kind, report.Source = Registry, ref.String()
			return report, err
		}
	}
	auth := r.Auth
	if auth == nil && r.Workspace == image.DefaultWorkspace {
		found, err := registry.FindAuth(ref)
		if err != nil {
			return Report{}, err
		}
		auth = &found
	}
	if auth == nil {
		auth = &registry.Auth{}
	}
	repo, err := im.Client.Open(ctx, ref, *auth, registry.Pull)
	if err != nil {
		return Report{}, err
	}
	defer repo.Close()
	top, err := repo.Manifest(ctx)
	if err != nil {
		return Report{}, err
	}
	c, err := fromRegistry(ctx, remote{repo}, top)
	if err != nil {
		return Report{}, err
	}
	report, err := im.container(ctx, to, Registry, c, progress)
	if err != nil {
		return report, err
	}
	at := ref.Context().Digest(top.Digest.String())
	pinnedRef, err := registry.ParseRef(at.Name(), r.Insecure)
	if err != nil {
		return report, err
	}
	report.Source = pinnedRef.String()
	return report, im.remember(pullKey(r.Workspace, at.Name()), report.Digest)
}

// pullKey names the pull of a reference with a digest.
func pullKey(workspace, ref string) store.Digest {
	return store.Sum(fmt.Appendf(nil, "brisk pull 1\n%s\n%s\n", workspace, ref))
}

// fromRegistry finds the image that a manifest or index of a registry leads to.
func fromRegistry(ctx context.Context, s imageSource, top registry.Manifest) (*container, error) {
	var shape struct {
		MediaType types.MediaType   `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Layers    []json.RawMessage `json:"layers"`
		Config    json.RawMessage   `json:"config"`
	}
	if err := json.Unmarshal(top.Raw, &shape); err != nil {
		return nil, fault.New(fault.Corrupt, "its manifest %s does not read: %w", top.Digest, err)
	}
	switch index, single := shape.Manifests != nil, shape.Config != nil; {
	case index && (single || shape.Layers != nil):
		// Readers that go by one half would see another image than those that go by the other.
		return nil, fault.New(fault.Invalid, "its manifest %s is an index and an image at once", top.Digest)
	case index:
		return fromIndex(ctx, s, top.Raw, "index "+top.Digest.String(), "")
	case !single:
		return nil, fault.New(fault.Invalid, "its manifest %s is of a kind that Brisk does not read (%s)", top.Digest, top.MediaType).
			WithHint("Images of schema 1 are of the time before 2016: push the image again with a current tool.")
	}
	return fromManifest(ctx, s, top.Raw, top.Digest)
}

// remote is the image of a registry as a source.
type remote struct{ repo *registry.Repo }

func (r remote) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	m, err := r.repo.ManifestOf(ctx, d)
	return m.Raw, err
}

func (r remote) config(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if d.Size <= 0 {
		return nil, fault.New(fault.Invalid, "its configuration has %d bytes, which cannot be", d.Size)
	}
	b := r.repo.Blob(ctx, d.Digest, d.Size)
	defer b.Close()
	return io.ReadAll(b)
}

func (r remote) layer(d v1.Descriptor) (func(context.Context) (io.ReadCloser, error), int64, error) {
	if len(d.URLs) > 0 || !d.MediaType.IsDistributable() {
		return nil, 0, fault.New(fault.NotFound, "it is not in the registry")
	}
	return func(ctx context.Context) (io.ReadCloser, error) {
		return r.repo.Blob(ctx, d.Digest, d.Size), nil
	}, d.Size, nil
}
