package export

import (
	"archive/tar"
	"context"
	"io"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// Archive writes an image as a tar of an OCI layout, which `docker load` reads, too.
func (x *Exporter) Archive(ctx context.Context, img *image.Image, w io.Writer, o Options, progress Progress) (Report, error) {
	r, err := x.archive(ctx, img, w, o, progress)
	return r, fault.Wrap(err, "export image", img.Digest.Short())
}

func (x *Exporter) archive(ctx context.Context, img *image.Image, w io.Writer, o Options, progress Progress) (Report, error) {
	o, err := o.check()
	if err != nil {
		return Report{}, err
	}
	a := archive{tar.NewWriter(w), map[string]bool{}}
	if err := a.json("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return Report{}, err
	}
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := a.header(dir, tar.TypeDir, 0o755, 0); err != nil {
			return Report{}, err
		}
	}
	var layers []string
	var config string
	manifest, report, err := x.eachBlob(ctx, img, o, progress, func(b *blob) error {
		if b.MediaType == types.OCIConfigJSON {
			config = blobName(b)
		} else {
			layers = append(layers, blobName(b))
		}
		return a.blob(b)
	})
	if err != nil {
		return report, err
	}
	if err := a.blob(manifest); err != nil {
		return report, err
	}
	d := manifest.Descriptor
	d.Platform = &v1.Platform{OS: "linux", Architecture: "amd64"}
	var tags []string
	if o.Name != "" {
		d.Annotations = map[string]string{"org.opencontainers.image.ref.name": o.Name}
		if t, err := name.NewTag(o.Name); err == nil {
			tags = []string{t.Name()}
		}
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{d}}
	if err := a.json("index.json", index); err != nil {
		return report, err
	}
	docker := []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{{config, tags, layers}}
	if err := a.json("manifest.json", docker); err != nil {
		return report, err
	}
	return report, a.Close()
}

func blobName(b *blob) string { return "blobs/sha256/" + b.Digest.Hex }

// archive is an OCI layout on its way into a tar.
type archive struct {
	*tar.Writer
	there map[string]bool // blobs, of which equal layers make only one
}

func (a *archive) header(name string, kind byte, mode, size int64) error {
	return a.WriteHeader(&tar.Header{Typeflag: kind, Name: name, Mode: mode, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}

func (a *archive) json(name string, v any) error {
	b, err := jsonBlob(v, "")
	if err != nil {
		return err
	}
	return a.file(name, b)
}

func (a *archive) blob(b *blob) error {
	if a.there[b.Digest.Hex] {
		return nil
	}
	a.there[b.Digest.Hex] = true
	return a.file(blobName(b), b)
}

func (a *archive) file(name string, b *blob) error {
	if err := a.header(name, tar.TypeReg, 0o644, b.Size); err != nil {
		return err
	}
	_, err := io.Copy(a, b.open())
	return err
}
