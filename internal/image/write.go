package image

import (
	"context"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Result says what a Write did.
type Result struct {
	Files       int64 // of all kinds; hard links count once
	Bytes       int64 // sum of the files' sizes
	Chunks      int64 // distinct
	NewChunks   int64 // that the store did not have
	NewBytes    int64 // in them
	StoredBytes int64 // what these take in packs, compressed
	MetaBytes   int64 // of EROFS metadata
}

// Write makes an image of a tree whose chunks are in batch or in the store
// already. It ends the batch: when it returns, that is committed or aborted. The
// image is durable then, and name, unless empty, leads to it. Equal content gives
// the image that is there already.
func (s *Images) Write(ctx context.Context, t *Tree, cfg Config, batch *store.Batch, workspace, name string) (*Image, Result, error) {
	defer batch.Abort() // of no effect after Commit
	if err := CheckRef(workspace, name); err != nil {
		return nil, Result{}, err
	}
	if err := s.mayWrite(workspace); err != nil {
		return nil, Result{}, err
	}
	return s.write(ctx, t, cfg, batch, workspace, name)
}

func (s *Images) write(ctx context.Context, t *Tree, cfg Config, batch *store.Batch, workspace, name string) (*Image, Result, error) {
	st, err := s.Store(workspace)
	if err != nil {
		return nil, Result{}, err
	}
	if batch.Store() != st {
		return nil, Result{}, fault.New(fault.Internal, "a batch of another workspace's store")
	}
	hold := batch.Hold()
	defer hold.Release()
	p, res, err := s.store(ctx, t, cfg, batch)
	if err != nil {
		return nil, res, fault.Wrap(err, "write image", name)
	}
	img, err := s.record(ctx, hold, p, workspace, name)
	return img, res, fault.Wrap(err, "write image", name)
}

// parts are what an image consists of beside its chunks.
type parts struct {
	manifest *Manifest
	meta     []byte
	table    []byte
}

// store puts everything that a manifest names into the store.
func (s *Images) store(ctx context.Context, t *Tree, cfg Config, batch *store.Batch) (*parts, Result, error) {
	meta, dev, sums, err := encodeTree(t)
	if err != nil {
		return nil, Result{}, err
	}
	for _, c := range dev.chunks {
		if err := batch.Use(c); err != nil {
			return nil, Result{}, err
		}
	}
	written, err := batch.Commit(ctx)
	if err != nil {
		return nil, Result{}, err
	}
	p := &parts{meta: meta.Bytes, table: encodeTable(dev.chunks)}
	m := &Manifest{
		Version: ManifestVersion, Config: cfg.clean(),
		Packs: written.Packs, DeviceBlocks: dev.blocks(), Files: sums.files, Bytes: sums.bytes, Created: time.Now(),
	}
	m.Meta.Size, m.Chunks.Count = int64(len(p.meta)), int64(len(dev.chunks))
	if m.Meta.Digest, err = batch.Store().PutBlob(ctx, p.meta); err != nil {
		return nil, Result{}, err
	}
	if m.Chunks.Digest, err = batch.Store().PutBlob(ctx, p.table); err != nil {
		return nil, Result{}, err
	}
	p.manifest = m
	return p, Result{
		Files: m.Files, Bytes: m.Bytes, Chunks: m.Chunks.Count, MetaBytes: m.Meta.Size,
		NewChunks: int64(written.NewChunks), NewBytes: written.NewBytes, StoredBytes: written.StoredBytes,
	}, nil
}

// record makes the manifest durable, at the origin and here, and then the name.
func (s *Images) record(ctx context.Context, hold *store.Hold, p *parts, workspace, name string) (*Image, error) {
	done, err := s.change(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	// The image is likely to be used soon, so its metadata stays here. Under the
	// lock, or Remove would find files that no manifest names.
	for d, b := range map[store.Digest][]byte{p.manifest.Meta.Digest: p.meta, p.manifest.Chunks.Digest: p.table} {
		if err := publish(s.blobPath(workspace, d), b); err != nil {
			return nil, err
		}
	}
	var m *Manifest
	isNew := false
	err = hold.Publish(ctx, p.manifest.Packs, []store.Digest{p.manifest.Meta.Digest, p.manifest.Chunks.Digest},
		func() (err error) { m, isNew, err = s.writeManifest(ctx, workspace, p.manifest); return err },
		func() error { return s.unwriteManifest(ctx, workspace, m, isNew) })
	if err != nil {
		return nil, err
	}
	if name != "" {
		if err := s.writeName(ctx, workspace, name, m.Digest()); err != nil {
			return nil, err
		}
	}
	return s.remember(workspace, m.Digest(), m)
}
