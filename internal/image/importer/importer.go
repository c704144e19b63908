// Package importer makes images of what lies on the machine's disk or in a
// registry: container images in an OCI layout (a directory, or a tar of one), in an
// archive of `docker save` or behind a reference such as "python:3.12", root
// filesystems in a tar, and plain directories.
//
// What a path is, is found out by looking: nothing depends on names or
// extensions. Archives may be compressed with gzip, zstd or bzip2.
//
// # What it promises
//
// An image survives a power loss when Import returns it. When Import fails, or
// is cancelled, nothing of it is visible and nothing is left on the disk. Every
// byte of a container image is checked against the digests in its manifest and
// configuration. Layers are read several at a time and applied in order, whiteouts
// included: nothing is unpacked on the disk. (A compressed archive of a whole
// image is the exception: its members are read out of order, so it is
// decompressed into an unlinked temporary file.) Memory in flight is bounded by
// some tens of MiB and about 300 bytes for each file of the image.
//
// A container image that has been imported before, and still is there whole,
// is not read again; nor is a layer of which an image has been made before.
//
// Directories keep what a filesystem can express: owners, modes, nanoseconds,
// extended attributes, hard links, devices, holes. Mount points below the
// directory are not entered, and the Report lists them. A file that changes while
// it is read makes the import fail.
//
// # Who may block whom
//
// Import blocks on the disk it reads from and on the store. Imports run beside each other.
package importer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/layers"
	"brisk.dev/brisk/internal/image/memo"
	"brisk.dev/brisk/internal/image/registry"
	"brisk.dev/brisk/internal/store"
)

// Importer imports. Its fields are not changed while it is in use.
type Importer struct {
	Images  *image.Images
	Memo    *memo.Memo // of earlier imports; nil: everything is read again
	TempDir string     // for compressed archives of images; "" = the system's

	// Layers are those of earlier imports; nil: every layer is read again.
	Layers *layers.Layers
	Client registry.Client // how registries are spoken to
}

// Request asks for one import.
type Request struct {
	Path      string // on this machine
	Tag       string // of an archive or layout that holds several images: the name or the digest of one; "" = the only one
	Workspace string
	Name      string // of the image; "" = none
}

// Report says what an import did. The counts are the image's, but for the new ones.
type Report struct {
	Digest    store.Digest `json:"digest"`
	Name      string       `json:"name"`
	Files     int64        `json:"files"`      // of all kinds; hard links count once
	Bytes     int64        `json:"bytes"`      // sum of the files' sizes
	Chunks    int64        `json:"chunks"`     // distinct
	NewChunks int64        `json:"new_chunks"` // that the store did not have
	NewBytes  int64        `json:"new_bytes"`  // in them
	MS        float64      `json:"ms"`
	Kind      Kind         `json:"kind"`

	Layers      int   `json:"layers,omitempty"`       // of a container image, each counted once
	KnownLayers int   `json:"known_layers,omitempty"` // of them, those that were not read because an earlier import had read them
	ReadBytes   int64 `json:"read_bytes,omitempty"`   // of the others, as they are stored or travel

	Skipped []string `json:"skipped,omitempty"` // mount points in a directory, which were not entered
	Source  string   `json:"source,omitempty"`  // of a pull: the reference with the digest that it led to
}

// Kind is what a path turned out to be.
type Kind string

// The kinds.
const (
	OCILayout     Kind = "oci-layout"     // a directory
	OCIArchive    Kind = "oci-archive"    // a tar of such a directory
	DockerArchive Kind = "docker-archive" // of docker save
	Tar           Kind = "tar"            // of a root filesystem
	Directory     Kind = "directory"      // a root filesystem
	Registry      Kind = "registry"       // a container image that was pulled
)

// Progress is told how far an import is, in bytes of what is read; total does
// not change between calls. It is called from one goroutine at a time, often,
// and must return fast. It may be nil.
type Progress func(done, total int64)

// Import makes an image of what lies at a path. Errors: NotFound if nothing is
// there; Invalid if it is no image, or none that can be used, or cut off; Corrupt if
// its parts do not match their digests; DiskFull; Cancelled.
func (im *Importer) Import(ctx context.Context, r Request, progress Progress) (Report, error) {
	began := time.Now()
	report, err := im.open(ctx, r, progress)
	if err != nil {
		return Report{}, fault.Wrap(err, "import", r.Path)
	}
	report.Name = r.Name
	report.MS = float64(time.Since(began).Microseconds()) / 1000
	return report, nil
}

func (im *Importer) open(ctx context.Context, r Request, progress Progress) (Report, error) {
	if err := image.CheckRef(r.Workspace, r.Name); err != nil {
		return Report{}, err
	}
	info, err := os.Stat(r.Path)
	if err != nil {
		return Report{}, pathFault(err)
	}
	switch {
	case info.IsDir():
		is, err := isLayout(r.Path)
		if err != nil {
			return Report{}, err
		}
		if !is {
			if r.Tag != "" {
				return Report{}, noTags()
			}
			return im.directory(ctx, r, progress)
		}
		c, err := directoryLayout(r.Path).container(ctx, r.Tag)
		if err != nil {
			return Report{}, err
		}
		return im.container(ctx, r, OCILayout, c, progress)
	case info.Mode().IsRegular():
		f, err := os.Open(r.Path)
		if err != nil {
			return Report{}, pathFault(err)
		}
		defer f.Close()
		return im.file(ctx, r, f, info.Size(), progress)
	}
	return Report{}, fault.New(fault.Invalid, "it is neither a file nor a directory")
}

func noTags() error {
	return fault.New(fault.Invalid, "it is a root filesystem, in which nothing has a tag")
}

func pathFault(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.NotFound, "no such file or directory")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG):
		return fault.New(fault.Invalid, "%w", errors.Unwrap(err))
	}
	return err
}

// file imports an archive of any kind.
func (im *Importer) file(ctx context.Context, r Request, f *os.File, size int64, progress Progress) (Report, error) {
	if size == 0 {
		return Report{}, fault.New(fault.Invalid, "the file is empty")
	}
	archived, compression, err := im.look(ctx, f)
	if err != nil {
		return Report{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Report{}, err
	}
	meter := newMeter(ctx, size, progress)
	if !archived {
		if r.Tag != "" {
			return Report{}, noTags()
		}
		return im.rootfs(ctx, r, meter.reader(f))
	}
	if compression != "" {
		// Reading the archive twice counts once: the layers are most of it.
		if f, err = im.spool(ctx, f); err != nil {
			return Report{}, err
		}
		defer f.Close()
	}
	a, err := openArchive(f)
	if err != nil {
		return Report{}, err
	}
	kind, find := DockerArchive, func(_ context.Context, tag string) (*container, error) { return dockerContainer(a, tag) }
	if a.has("oci-layout") && a.has("index.json") {
		kind, find = OCIArchive, archiveLayout(a).container
	}
	c, err := find(ctx, r.Tag)
	if err != nil {
		return Report{}, err
	}
	return im.container(ctx, r, kind, c, progress)
}

// look finds out whether an archive is of an image, and how it is compressed.
func (im *Importer) look(ctx context.Context, f *os.File) (archived bool, compression string, err error) {
	r, compression, err := plain(newMeter(ctx, 0, nil).reader(f))
	if err != nil {
		return false, "", err
	}
	defer r.Close()
	archived, err = holdsImage(r)
	return archived, compression, err
}

// spool decompresses f into a file that has no name: it goes with its last descriptor.
func (im *Importer) spool(ctx context.Context, f *os.File) (*os.File, error) {
	to, err := os.CreateTemp(im.TempDir, "brisk-import-")
	if err != nil {
		return nil, store.DiskError(err, "make a temporary file in", im.tempDir())
	}
	os.Remove(to.Name())
	r, _, err := plain(newMeter(ctx, 0, nil).reader(f))
	if err == nil {
		var n int64
		if n, err = io.Copy(to, io.LimitReader(r, image.DefaultMaxBytes)); err == nil && n == image.DefaultMaxBytes {
			err = fault.New(fault.Invalid, "it is larger than %d bytes when decompressed", int64(image.DefaultMaxBytes))
		}
		r.Close()
	}
	if err != nil {
		to.Close()
		if fault.Is(err, fault.DiskFull) {
			err = store.DiskError(err, "decompress it into", im.tempDir())
		}
		return nil, err
	}
	return to, nil
}

func (im *Importer) tempDir() string {
	if im.TempDir != "" {
		return im.TempDir
	}
	return os.TempDir()
}

// rootfs imports a tar of a root filesystem, in which no name is special.
func (im *Importer) rootfs(ctx context.Context, r Request, stored io.Reader) (Report, error) {
	stream, _, err := plain(stored)
	if err != nil {
		return Report{}, err
	}
	defer stream.Close()
	ahead := readAhead(stream)
	defer ahead.Close()
	return im.build(ctx, r, Tar, image.Config{}, func(t *image.Tree, batch *store.Batch) error {
		if _, err := t.ApplyTar(ctx, &tarEnd{r: ahead}, batch, image.LayerOptions{Whiteouts: image.NoWhiteouts}); err != nil {
			return err
		}
		return drain(ahead)
	})
}

// build makes an image of what fill puts into a tree. After any failure nothing is left.
func (im *Importer) build(ctx context.Context, r Request, kind Kind, cfg image.Config, fill func(*image.Tree, *store.Batch) error) (Report, error) {
	t := image.NewTree()
	st, err := im.Images.Store(r.Workspace)
	if err != nil {
		return Report{}, err
	}
	batch := st.Begin(ctx)
	defer batch.Abort() // of no effect after Write
	if err := fill(t, batch); err != nil {
		return Report{}, err
	}
	img, res, err := im.Images.Write(ctx, t, cfg, batch, r.Workspace, r.Name)
	if err != nil {
		return Report{}, err
	}
	return Report{
		Digest: img.Digest, Files: res.Files, Bytes: res.Bytes, Kind: kind,
		Chunks: res.Chunks, NewChunks: res.NewChunks, NewBytes: res.NewBytes,
	}, nil
}

// meter counts what is read on the way to total, and ends reading with its context.
type meter struct {
	ctx      context.Context
	total    int64
	progress Progress

	mu   sync.Mutex // progress is called from one goroutine at a time
	done int64
}

func newMeter(ctx context.Context, total int64, progress Progress) *meter {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	return &meter{ctx: ctx, total: total, progress: progress}
}

func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.progress(min(m.done, m.total), m.total)
}

func (m *meter) reader(r io.Reader) io.Reader { return &metered{m, r} }

type metered struct {
	*meter
	r io.Reader
}

func (m *metered) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	if m.total > 0 {
		m.add(int64(n))
	}
	return n, err
}
