package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/bench/report"
)

const importSamples = 5

// imports compares the import of an image of more than 1 GB, in gzip-compressed
// layers, with extracting those layers; and imports it again.
func imports(o options) ([]report.Row, error) {
	const name, again = "import of a new image of 1.2 GB", "import of an unchanged image"
	s, err := importAgainstTar(o, read)
	if err != nil {
		return nil, err
	}
	return []report.Row{
		report.Paired(name, "gzip layers, in the page cache; durable", "tar -xz of its layers to ext4, not synced", s.ours, s.plain, 1.5),
		report.Paired(name, "gzip layers, in the page cache; durable", "tar -xz of its layers to ext4 and sync", s.ours, s.synced, 0),
		report.Value(again, "0 new chunks, longest", len(s.again), report.Of(s.again).Max, "ms", 1000),
	}, nil
}

// coldImports is imports of layers that have to come from the disk.
func coldImports(o options) ([]report.Row, error) {
	const name, condition = "import of a new image of 1.2 GB", "gzip layers, not in the page cache; durable"
	s, err := importAgainstTar(o, forget)
	if err != nil {
		return nil, err
	}
	return []report.Row{
		report.Paired(name, condition, "tar -xz of its layers to ext4, not synced", s.ours, s.plain, 0),
		report.Paired(name, condition, "tar -xz of its layers to ext4 and sync", s.ours, s.synced, 1.5),
	}, nil
}

// importTimes are in milliseconds.
type importTimes struct{ ours, plain, synced, again []float64 }

// importAgainstTar takes samples. prepare is called with each file that will be read.
func importAgainstTar(o options, prepare func(path string) error) (s importTimes, err error) {
	at, layers, err := largeLayout(o)
	if err != nil {
		return s, err
	}
	blobs, err := filepath.Glob(filepath.Join(at, "blobs", "*", "*"))
	if err != nil {
		return s, err
	}
	for i := range importSamples {
		progress("import of a large image, %d of %d", i+1, importSamples)
		for _, l := range append(blobs, layers...) {
			if err := prepare(l); err != nil {
				return s, err
			}
		}
		if err := s.ourSample(o, at); err != nil {
			return s, err
		}
		if err := s.tarSample(o, layers); err != nil {
			return s, err
		}
	}
	return s, nil
}

// ourSample imports an image into a machine that has nothing, and once more.
func (s *importTimes) ourSample(o options, at string) (err error) {
	m, err := newMachine(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	began := time.Now()
	r, err := m.imports(o, at)
	s.ours = append(s.ours, ms(time.Since(began)))
	if err != nil {
		return err
	}
	if r.NewChunks == 0 {
		return errors.New("the import found everything there")
	}
	began = time.Now()
	r, err = m.imports(o, at)
	s.again = append(s.again, ms(time.Since(began)))
	if err == nil && r.NewChunks != 0 {
		err = fmt.Errorf("importing again added %d chunks", r.NewChunks)
	}
	return err
}

// tarSample extracts the layers, and then has the files written to the disk.
func (s *importTimes) tarSample(o options, layers []string) (err error) {
	to := filepath.Join(o.dir, "untar")
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(to)) }()
	began := time.Now()
	for _, l := range layers {
		if err := shell(o, `tar -C "$1" --xattrs -xpzf "$2"`, to, l); err != nil {
			return err
		}
	}
	s.plain = append(s.plain, ms(time.Since(began)))
	err = shell(o, `sync -f "$1"`, to)
	s.synced = append(s.synced, ms(time.Since(began)))
	return err
}

// forget takes a file out of the page cache.
func forget(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

func read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}

// largeLayout is an OCI layout of two layers, the second of them what apt installed.
func largeLayout(o options) (at string, layers []string, err error) {
	at = filepath.Join(o.dir, "large-layout")
	first, second := filepath.Join(o.dir, "large-1.tar.gz"), filepath.Join(o.dir, "large-2.tar.gz")
	layers = []string{first, second}
	if _, err := os.Stat(at); err == nil {
		return at, layers, nil
	}
	tree, err := extracted(o, "large")
	if err != nil {
		return "", nil, err
	}
	progress("compressing its layers, once")
	err = shell(o, `tar -C "$1" --xattrs --exclude=./usr/lib/x86_64-linux-gnu --exclude=./usr/lib/python3 -czf "$2" .
		tar -C "$1" --xattrs -czf "$3" ./usr/lib/x86_64-linux-gnu ./usr/lib/python3`, tree, first, second)
	if err != nil {
		return "", nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	cfg, err := img.ConfigFile()
	if err != nil {
		return "", nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", "amd64"
	var base v1.Image
	if base, err = mutate.ConfigFile(img, cfg); err != nil {
		return "", nil, err
	}
	for _, path := range layers {
		l, err := tarball.LayerFromFile(path, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return "", nil, err
		}
		if base, err = mutate.AppendLayers(base, l); err != nil {
			return "", nil, err
		}
	}
	temp := at + ".new"
	if err := os.RemoveAll(temp); err != nil {
		return "", nil, err
	}
	p, err := layout.Write(temp, empty.Index)
	if err != nil {
		return "", nil, err
	}
	if err := p.AppendImage(base); err != nil {
		return "", nil, err
	}
	return at, layers, os.Rename(temp, at)
}

// contents sums up the sizes of the regular files of a tree by content.
func contents(tree string) (map[string]int64, error) {
	out := map[string]int64{}
	files, err := largest(tree, 1<<62)
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		n, err := io.Copy(h, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		out[hex.EncodeToString(h.Sum(nil))] = n
	}
	return out, nil
}
