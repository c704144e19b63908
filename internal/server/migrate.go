package server

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// dataVersion1 is the format before workspaces had stores of their own: packs,
// blobs and manifests lay at the root of DATA/store, and names only in DATA/images.
const dataVersion1 = "brisk data 1\n"

// migrateData makes a directory of the format before one of this. It renames, so
// that it takes no time and no space, and each step may be the last before a
// crash: the next start goes on. Precondition: the lock is held.
func migrateData(ctx context.Context, p Paths) error {
	b, err := os.ReadFile(filepath.Join(p.Data, "version"))
	if err != nil {
		return fault.Wrap(err, "read", filepath.Join(p.Data, "version"))
	}
	if string(b) != dataVersion1 {
		return nil
	}
	return fault.Wrap(migrate1(ctx, p), "migrate", p.Data)
}

func migrate1(ctx context.Context, p Paths) error {
	old := filepath.Join(p.Data, "store")
	manifests, err := os.ReadDir(filepath.Join(old, "manifests"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, w := range manifests {
		if w.Name() != image.DefaultWorkspace {
			return fault.New(fault.Machine, "it has images of a workspace %q, which no Brisk of that format made", w.Name()).
				WithHint("Use the Brisk that made it, or another directory with --data.")
		}
	}
	own := filepath.Join(old, image.DefaultWorkspace)
	for _, r := range []struct{ from, to string }{
		{filepath.Join(old, "packs"), filepath.Join(own, "packs")},
		{filepath.Join(old, "blobs"), filepath.Join(own, "blobs")},
		{filepath.Join(old, "manifests", image.DefaultWorkspace), filepath.Join(own, "records", "manifests")},
	} {
		if err := os.MkdirAll(filepath.Dir(r.to), 0o700); err != nil {
			return err
		}
		if err := os.Rename(r.from, r.to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := migrateNames(ctx, p, old); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(old, "manifests"))
	_ = os.Remove(filepath.Join(p.Data, "cache", "packs", "packs.idx")) // a cache, of another format
	for _, dir := range []string{filepath.Join(own, "records"), own, old} {
		if err := syncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return writeVersion(p.Data)
}

// migrateNames makes records of the names that were only local.
func migrateNames(ctx context.Context, p Paths, origin string) error {
	files, err := filepath.Glob(filepath.Join(p.Data, "images", image.DefaultWorkspace, "names", "*.json"))
	if err != nil || len(files) == 0 {
		return err
	}
	dir, err := store.OpenDir(origin)
	if err != nil {
		return err
	}
	local, err := os.MkdirTemp(p.Data, ".migrate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(local)
	s, err := store.Open(ctx, store.Options{Dir: local, Origin: store.Prefix(dir, image.DefaultWorkspace+"/")})
	if err != nil {
		return err
	}
	defer s.Close()
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var name struct{ Name string }
		if json.Unmarshal(b, &name) != nil || name.Name == "" {
			continue // damaged: it led nowhere before, too
		}
		if _, err := s.PutRecord(ctx, "names", name.Name, b, nil); err != nil {
			return err
		}
	}
	return nil
}
