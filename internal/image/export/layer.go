package export

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// parallelLayers is how many layers are made at once. One is bound by its compression, on one core.
const parallelLayers = 2

// blob is a layer or another part of a container image, ready to be sent.
type blob struct {
	v1.Descriptor
	diffID v1.Hash
	file   *os.File // a layer's; it has no name, and goes when it is closed
	bytes  []byte   // of other parts
}

func (b *blob) open() io.Reader {
	if b.file != nil {
		return io.NewSectionReader(b.file, 0, b.Size)
	}
	return bytes.NewReader(b.bytes)
}

func (b *blob) close() {
	if b.file != nil {
		b.file.Close()
	}
}

func sum(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// eachBlob makes the parts of a container image and calls use with each, one at a
// time and in order: layers, configuration. It gives the manifest, which comes last.
func (x *Exporter) eachBlob(ctx context.Context, img *image.Image, o Options, progress Progress, use func(*blob) error) (*blob, Report, error) {
	p, err := x.plan(ctx, img, o)
	if err != nil {
		return nil, Report{}, err
	}
	m := newMeter(p.bytes, progress)
	report := Report{Layers: len(p.layers), LeftOut: p.leftOut}
	made := make([]chan *blob, len(p.layers))
	for i := range made {
		made[i] = make(chan *blob, 1)
	}
	defer func() { // what nobody has taken
		for _, ch := range made {
			select {
			case b := <-ch:
				b.close()
			default:
			}
		}
	}()
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	var diffIDs []v1.Hash
	group, ctx := errgroup.WithContext(ctx)
	// A slot is free again when its layer is used, not when it is made: that
	// bounds the temporary files.
	slots := make(chan struct{}, parallelLayers)
	group.Go(func() error {
		for i, l := range p.layers {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			group.Go(func() error {
				b, err := x.layer(ctx, l, o.Compression, m)
				if err == nil {
					made[i] <- b
				}
				return err
			})
		}
		return nil
	})
	group.Go(func() error {
		for _, ch := range made {
			select {
			case b := <-ch:
				manifest.Layers, diffIDs = append(manifest.Layers, b.Descriptor), append(diffIDs, b.diffID)
				report.Bytes += b.Size
				err := use(b)
				b.close()
				if err != nil {
					return err
				}
				<-slots
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, report, err
	}
	config, err := configBlob(img.Config(), diffIDs)
	if err != nil {
		return nil, report, err
	}
	if err := use(config); err != nil {
		return nil, report, err
	}
	manifest.Config = config.Descriptor
	last, err := jsonBlob(manifest, types.OCIManifestSchema1)
	if err == nil {
		report.Digest = last.Digest.String()
	}
	return last, report, err
}

// plan lays out the layers: those of the base, as exporting it alone would, and what is above.
func (x *Exporter) plan(ctx context.Context, img *image.Image, o Options) (*planned, error) {
	t, err := img.Tree(ctx)
	if err != nil {
		return nil, err
	}
	if o.Base == nil {
		return plan(nil, t, o.LayerBytes, true)
	}
	base, err := o.Base.Tree(ctx)
	if err != nil {
		return nil, err
	}
	below, err := plan(nil, base, o.LayerBytes, true)
	if err != nil {
		return nil, err
	}
	above, err := plan(base, t, o.LayerBytes, true)
	if err != nil {
		return nil, err
	}
	return &planned{
		layers: append(below.layers, above.layers...), bytes: below.bytes + above.bytes,
		leftOut: above.leftOut,
	}, nil
}

// layer writes a layer into a temporary file.
func (x *Exporter) layer(ctx context.Context, l *tarred, c Compression, m *meter) (*blob, error) {
	if err := os.MkdirAll(x.tempDir(), 0o700); err != nil {
		return nil, store.DiskError(err, "write a layer in", x.tempDir())
	}
	f, err := os.CreateTemp(x.TempDir, "brisk-export-")
	if err != nil {
		return nil, store.DiskError(err, "write a layer in", x.tempDir())
	}
	os.Remove(f.Name())
	b := &blob{file: f}
	b.MediaType, err = c.mediaType(), x.writeLayer(ctx, b, l, c, m)
	if err != nil {
		f.Close()
		if fault.Is(err, fault.DiskFull) {
			err = store.DiskError(err, "write a layer in", x.tempDir())
		}
		return nil, err
	}
	return b, nil
}

func (x *Exporter) writeLayer(ctx context.Context, b *blob, l *tarred, c Compression, m *meter) error {
	hashStored, hashPlain := sha256.New(), sha256.New()
	stored := &counter{w: io.MultiWriter(b.file, hashStored)}
	z, err := c.writer(stored)
	if err != nil {
		return err
	}
	if err := x.writeTar(ctx, l, io.MultiWriter(z, hashPlain), m); err != nil {
		_ = z.Close()
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	b.Size, b.Digest, b.diffID = stored.n, sum(hashStored), sum(hashPlain)
	return nil
}

func (x *Exporter) tempDir() string {
	if x.TempDir != "" {
		return x.TempDir
	}
	return os.TempDir()
}

func (c Compression) mediaType() types.MediaType {
	switch c {
	case Zstd:
		return types.OCILayerZStd
	case Uncompressed:
		return types.OCIUncompressedLayer
	}
	return types.OCILayer
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// writer compresses. What it writes depends on nothing but its input.
func (c Compression) writer(w io.Writer) (io.WriteCloser, error) {
	switch c {
	case Zstd:
		return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(4<<20), zstd.WithLowerEncoderMem(true))
	case Uncompressed:
		return nopCloser{w}, nil
	}
	return gzip.NewWriterLevel(w, gzip.DefaultCompression)
}

// configBlob makes the configuration. It has no date, for equal images have none in common.
func configBlob(c image.Config, diffIDs []v1.Hash) (*blob, error) {
	f := v1.ConfigFile{
		Architecture: "amd64", OS: "linux", Created: v1.Time{Time: time.Unix(0, 0).UTC()},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs},
		Config: v1.Config{
			Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
			WorkingDir: c.Workdir, User: c.User, Labels: c.Labels,
		},
	}
	for range diffIDs {
		f.History = append(f.History, v1.History{Created: f.Created, CreatedBy: "brisk"})
	}
	return jsonBlob(f, types.OCIConfigJSON)
}

func jsonBlob(v any, kind types.MediaType) (*blob, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	h := sha256.Sum256(b)
	return &blob{bytes: b, Descriptor: v1.Descriptor{
		MediaType: kind, Size: int64(len(b)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h[:])},
	}}, nil
}
