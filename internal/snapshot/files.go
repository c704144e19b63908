package snapshot

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// describe reads one file and lists its chunks; buf holds one chunk.
func describe(ctx context.Context, path string, buf []byte) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, fault.Wrap(err, "read snapshot file", filepath.Base(path))
	}
	defer f.Close()
	out := File{Name: filepath.Base(path)}
	for {
		if err := ctx.Err(); err != nil {
			return File{}, err
		}
		n, err := io.ReadFull(f, buf)
		if n > 0 {
			out.Size += int64(n)
			out.Chunks = append(out.Chunks, store.Sum(buf[:n]))
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return out, nil
		}
		if err != nil {
			return File{}, fault.Wrap(err, "read snapshot file", out.Name)
		}
	}
}

// writeManifest writes m durably under a name that nobody reads yet.
func writeManifest(path string, m Manifest) error {
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return fault.Wrap(err, "encode", "snapshot manifest")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fault.Wrap(err, "write", "snapshot manifest")
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return fault.Wrap(err, "write", "snapshot manifest")
}

func syncDirs(dirs ...string) error {
	for _, d := range dirs {
		f, err := os.Open(d)
		if err != nil {
			return fault.Wrap(err, "sync", d)
		}
		err = f.Sync()
		_ = f.Close()
		if err != nil {
			return fault.Wrap(err, "sync", d)
		}
	}
	return nil
}
