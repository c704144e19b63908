package export

import (
	"context"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/registry"
)

// Push puts an image into a repository under the reference that it was opened
// with, and sends only what the registry does not have.
func (x *Exporter) Push(ctx context.Context, img *image.Image, to *registry.Repo, o Options, progress Progress) (Report, error) {
	r, err := x.push(ctx, img, to, o, progress)
	return r, fault.Wrap(err, "push image", img.Digest.Short())
}

func (x *Exporter) push(ctx context.Context, img *image.Image, to *registry.Repo, o Options, progress Progress) (Report, error) {
	o, err := o.check()
	if err != nil {
		return Report{}, err
	}
	if err := to.MayPush(ctx); err != nil {
		return Report{}, err
	}
	var sent int64
	present := 0
	manifest, report, err := x.eachBlob(ctx, img, o, progress, func(b *blob) error {
		there, err := to.PutBlob(ctx, b.Digest, b.Size, b.open)
		switch {
		case err != nil:
			return err
		case there:
			present++
		default:
			sent += b.Size
		}
		return nil
	})
	if err != nil {
		return report, err
	}
	report.Present, report.Sent = present, sent
	return report, to.PutManifest(ctx, manifest.bytes, manifest.MediaType)
}
