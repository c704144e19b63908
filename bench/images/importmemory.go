package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"brisk.dev/brisk/bench/drive"
	"brisk.dev/brisk/bench/report"
)

// importMemory has new servers import large images, and says how much memory each had at most.
func importMemory(o options) (rows []report.Row, err error) {
	dir := filepath.Join(o.dir, "import-memory")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, c := range []struct {
		name   string
		layers []bigLayer
	}{
		{"import of 3 GB, a file of 2 GB in it", []bigLayer{{files: 1, size: 2 << 30}, {files: 64, size: 16 << 20, zstd: true}}},
		{"import of 300,000 small files", []bigLayer{{files: 150_000, size: 700}, {files: 150_000, size: 900, zstd: true}}},
	} {
		progress("%s", c.name)
		peak, err := importPeak(o, dir, c.layers)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		rows = append(rows, report.Value(c.name, "server, resident at most", 1, float64(peak)/1e6, "MB", 300))
	}
	return rows, nil
}

// importPeak is the most memory that a new server had resident that imported such an image.
func importPeak(o options, dir string, layers []bigLayer) (peak int64, err error) {
	src, data := filepath.Join(dir, "layout"), filepath.Join(dir, "data")
	if err := writeLayout(src, layers); err != nil {
		return 0, err
	}
	s, err := drive.Up(o.ctx, o.brisk, data, -1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Down(), os.RemoveAll(dir)) }()
	if out, err := exec.CommandContext(o.ctx, o.brisk, "image", "import", "--data", data, src, "--name", "large").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("import: %w: %s", err, out)
	}
	return drive.PeakRSS(s.PID())
}

// bigLayer is files of one size. Their content is new in each piece of 4 KiB, and compresses well, so
// that it is the importer that is measured and not the disk.
type bigLayer struct {
	files int
	size  int64
	zstd  bool // else gzip
}

// writeLayout writes an OCI image, never holding more of it than a buffer.
func writeLayout(dir string, layers []bigLayer) error {
	img := empty.Image
	for n, l := range layers {
		path := fmt.Sprintf("%s.layer%d", dir, n)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := l.write(path, uint64(n)); err != nil {
			return err
		}
		defer os.Remove(path)
		layer, err := tarball.LayerFromFile(path)
		if err != nil {
			return err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return err
		}
	}
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return p.AppendImage(img)
}

func (l bigLayer) write(path string, seed uint64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := bufio.NewWriterSize(f, 1<<20)
	var w io.WriteCloser
	if l.zstd {
		w, err = zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedFastest))
	} else {
		w, err = gzip.NewWriterLevel(out, gzip.BestSpeed)
	}
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	piece := []byte(strings.Repeat("what is in a large image ", 200)[:4096])
	for i := range l.files {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("layer%d/%d/file-%d", seed, i/500, i), Mode: 0o644, Size: l.size}); err != nil {
			return err
		}
		for at := int64(0); at < l.size; at += int64(len(piece)) {
			binary.LittleEndian.PutUint64(piece, seed<<56|uint64(i)<<24|uint64(at>>12))
			if _, err := t.Write(piece[:min(int64(len(piece)), l.size-at)]); err != nil {
				return err
			}
		}
	}
	return errors.Join(t.Close(), w.Close(), out.Flush())
}
