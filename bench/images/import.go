package main

import (
	"crypto/sha256"
	"encoding/hex"
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

	"brisk.dev/brisk/bench/report"
)

const importSamples = 3

// imports compares the import of an image of more than 1 GB, in gzip-compressed
// layers, with extracting those layers; and imports it again.
func imports(o options) ([]report.Row, error) {
	at, layers, err := largeLayout(o)
	if err != nil {
		return nil, err
	}
	var ours, plain, synced, again []float64
	for i := range importSamples {
		progress("import of a large image, %d of %d", i+1, importSamples)
		for _, l := range append([]string{filepath.Join(at, "index.json")}, layers...) { // in the page cache, for both
			if err := read(l); err != nil {
				return nil, err
			}
		}
		m, err := newMachine(o)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		r, err := m.imports(o, at)
		ours = append(ours, ms(time.Since(began)))
		if err == nil && r.NewChunks == 0 {
			err = fmt.Errorf("the import found everything there")
		}
		if err == nil {
			began = time.Now()
			r, err = m.imports(o, at)
			again = append(again, ms(time.Since(began)))
			if err == nil && r.NewChunks != 0 {
				err = fmt.Errorf("importing again added %d chunks", r.NewChunks)
			}
		}
		if cerr := m.close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, err
		}
		to := filepath.Join(o.dir, "untar")
		if err := os.MkdirAll(to, 0o700); err != nil {
			return nil, err
		}
		began = time.Now()
		for _, l := range layers {
			if err := shell(o, `tar -C "$1" --xattrs -xpzf "$2"`, to, l); err != nil {
				return nil, err
			}
		}
		plain = append(plain, ms(time.Since(began)))
		if err := shell(o, `sync -f "$1"`, to); err != nil {
			return nil, err
		}
		synced = append(synced, ms(time.Since(began)))
		if err := os.RemoveAll(to); err != nil {
			return nil, err
		}
	}
	return []report.Row{
		report.Paired("import of a new image of 1.2 GB", "gzip layers, in the page cache; durable", "tar -xz of its layers to ext4, not synced", ours, plain, 1.5),
		report.Paired("import of a new image of 1.2 GB", "gzip layers, in the page cache; durable", "tar -xz of its layers to ext4 and sync", ours, synced, 0),
		report.Value("import of an unchanged image", "0 new chunks, longest", len(again), report.Of(again).Max, "ms", 1000),
	}, nil
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
