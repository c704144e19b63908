// Package export makes container images of images again: archives in the OCI
// layout, images in registries, and tars of root filesystems.
//
// # What it promises
//
// Equal images give equal bytes, and so equal digests: the order of entries, the
// bounds of layers and the compression depend on nothing else (and on the version
// of Brisk). The file tree comes through bit for bit: owners, modes, times to the
// nanosecond, extended attributes, hard links, devices, names of any bytes. Holes
// are zeros on the way, and holes again when the result is imported. So an
// exported image that is imported is the same image, with the same digest.
//
// What a container image cannot say is either left out and listed (sockets) or
// refused (names that begin with ".wh.", of which a reader would make
// whiteouts; extended attributes with '=' in the name). Of the configuration only
// what image.Config has is there.
//
// # Layers
//
// With a base, its layers come first and are those that exporting the base alone
// gives: a registry that has the base gets the rest only. Without, and above
// the base, layers are cut by size. Each stands by itself: it has the directories
// above its files, and all names of a file with several.
//
// # Resources
//
// Layers are written to temporary files, two at a time, since a registry and an archive
// want to know digest and size first. Memory is bounded by some tens of MiB and the tree's
// 300 bytes a file. Everything ends with its context.
package export

import (
	"context"
	"fmt"
	"io"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// Chunks reads content. *store.Store is one.
type Chunks interface {
	ReadChunk(ctx context.Context, c store.Chunk, dst []byte) (store.Tier, error)
}

// Exporter exports. Its fields are not changed while it is in use.
type Exporter struct {
	Chunks  Chunks
	TempDir string // for layers on their way; "" = the system's
}

// Compression is how layers are stored.
type Compression string

// The compressions. The zero value is Gzip, which every tool reads.
const (
	Gzip         Compression = "gzip"
	Zstd         Compression = "zstd"
	Uncompressed Compression = "none"
)

// Options say how an image is exported.
type Options struct {
	Base        *image.Image // whose layers come first; nil: none
	Compression Compression
	LayerBytes  int64  // content at which a layer ends; 0 = DefaultLayerBytes
	Name        string // of the image in an archive; "" = none
}

// DefaultLayerBytes is the content of a layer: few enough layers for any image, and
// small enough that a broken transfer costs little.
const DefaultLayerBytes = 512 << 20

func (o Options) check() (Options, error) {
	if o.LayerBytes <= 0 {
		o.LayerBytes = DefaultLayerBytes
	}
	switch o.Compression {
	case "":
		o.Compression = Gzip
	case Gzip, Zstd, Uncompressed:
	default:
		return o, fault.New(fault.Invalid, "the compression %q is not known: want gzip, zstd or none", string(o.Compression))
	}
	return o, nil
}

// Report says what an export made.
type Report struct {
	Digest  string   `json:"digest,omitempty"`  // of the manifest: "sha256:..."
	Layers  int      `json:"layers,omitempty"`  //
	Bytes   int64    `json:"bytes"`             // of the layers as they are stored, or of the tar
	Present int      `json:"present,omitempty"` // of a push: blobs that the registry had
	Sent    int64    `json:"sent,omitempty"`    // of a push: bytes of the other blobs
	LeftOut []string `json:"left_out,omitempty"`
	MS      float64  `json:"ms"`
}

// Progress is told how far an export is, in bytes of the files' content. It is
// called from one goroutine at a time, often, and must return fast. It may be nil.
type Progress func(done, total int64)

// Tar writes the root filesystem of an image as a plain tar.
func (x *Exporter) Tar(ctx context.Context, img *image.Image, w io.Writer, progress Progress) (Report, error) {
	t, err := img.Tree(ctx)
	if err != nil {
		return Report{}, err
	}
	p, err := plan(nil, t, 1<<62, false)
	if err != nil {
		return Report{}, fault.Wrap(err, "export image", img.Digest.Short())
	}
	counted := &counter{w: w}
	m := newMeter(p.bytes, progress)
	for _, l := range p.layers {
		if err := x.writeTar(ctx, l, counted, m); err != nil {
			return Report{}, fault.Wrap(err, "export image", img.Digest.Short())
		}
	}
	return Report{Bytes: counted.n, LeftOut: p.leftOut}, nil
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// sockets and the like, for people.
func leftOutText(path string) string { return fmt.Sprintf("%s (a socket)", path) }
