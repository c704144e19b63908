package image

import (
	"context"
	"os"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Image is one image of a workspace. Safe for concurrent use; the same Image is
// returned for the same digest as long as the registry is open.
type Image struct {
	Digest    store.Digest
	Workspace string
	Manifest  Manifest // not to be changed

	images *Images
	store  *store.Store // the workspace's
	meta   struct {
		busy chan struct{} // held by whoever fetches it
		good bool          // the local file has been verified
	}
	device struct {
		busy   chan struct{} // held by whoever fetches the chunk table
		blocks *Blocks
	}
}

func newImage(s *Images, st *store.Store, workspace string, d store.Digest, m *Manifest) *Image {
	i := &Image{Digest: d, Workspace: workspace, Manifest: *m, images: s, store: st}
	i.meta.busy, i.device.busy = make(chan struct{}, 1), make(chan struct{}, 1)
	return i
}

// Use keeps what a lazily mounted image reads at the origin from being deleted, although
// the image may be removed, by another machine too. It does not block.
func (i *Image) Use() (release func()) {
	m := &i.Manifest
	return i.store.Use(m.Packs, []store.Digest{m.Meta.Digest, m.Chunks.Digest})
}

// Config is how processes of the image start.
func (i *Image) Config() Config { return i.Manifest.Config }

func (i *Image) lock(ctx context.Context, busy chan struct{}) error {
	select {
	case busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return i.wrap(ctx.Err(), "open")
	}
}

func (i *Image) wrap(err error, op string) error {
	return fault.Wrap(err, op+" image", i.Digest.Short())
}

// MetaPath is a local file with the EROFS metadata, which it fetches from the
// origin if it is not here or not what it should be. It is verified once per process.
func (i *Image) MetaPath(ctx context.Context) (string, error) {
	if err := i.lock(ctx, i.meta.busy); err != nil {
		return "", err
	}
	defer func() { <-i.meta.busy }()
	path := i.images.blobPath(i.Workspace, i.Manifest.Meta.Digest)
	if i.meta.good {
		if st, err := os.Stat(path); err == nil && st.Size() == i.Manifest.Meta.Size {
			return path, nil
		}
	}
	if _, err := i.blob(ctx, i.Manifest.Meta.Digest, i.Manifest.Meta.Size); err != nil {
		return "", i.wrap(err, "read metadata of")
	}
	i.meta.good = true
	return path, nil
}

// Tree decodes the metadata. Every call makes a tree of its own.
func (i *Image) Tree(ctx context.Context) (*Tree, error) {
	blocks, err := i.Blocks(ctx)
	if err != nil {
		return nil, err
	}
	meta, err := i.blob(ctx, i.Manifest.Meta.Digest, i.Manifest.Meta.Size)
	if err != nil {
		return nil, i.wrap(err, "read metadata of")
	}
	t, err := decodeTree(meta, blocks.dev)
	return t, i.wrap(err, "read metadata of")
}

// Blocks is the image's device. Every call returns the same one, so that its
// counts are the image's.
func (i *Image) Blocks(ctx context.Context) (*Blocks, error) {
	if err := i.lock(ctx, i.device.busy); err != nil {
		return nil, err
	}
	defer func() { <-i.device.busy }()
	if i.device.blocks != nil {
		return i.device.blocks, nil
	}
	table, err := i.blob(ctx, i.Manifest.Chunks.Digest, tableSize(i.Manifest.Chunks.Count))
	if err != nil {
		return nil, i.wrap(err, "read chunk table of")
	}
	dev, err := decodeTable(table)
	if err != nil {
		return nil, i.wrap(err, "read chunk table of")
	}
	if dev.blocks() != i.Manifest.DeviceBlocks {
		return nil, i.wrap(fault.New(fault.Corrupt, "the manifest says %d blocks, the chunk table %d", i.Manifest.DeviceBlocks, dev.blocks()), "open")
	}
	i.device.blocks = newBlocks(dev, i.store.Reader(i.Manifest.Packs, dev.chunks))
	return i.device.blocks, nil
}

// ReadChunk reads a chunk of the image as Blocks do, but no recording sees it.
func (i *Image) ReadChunk(ctx context.Context, c store.Chunk, dst []byte) (store.Tier, error) {
	blocks, err := i.Blocks(ctx)
	if err != nil {
		return store.FromOrigin, err
	}
	return blocks.source.ReadChunk(ctx, c, dst)
}

// Content reads all of a regular file of the image: a small one.
func (i *Image) Content(ctx context.Context, n *Node) ([]byte, error) {
	blocks, err := i.Blocks(ctx)
	if err != nil {
		return nil, err
	}
	content := make([]byte, 0, n.File().Size)
	for _, c := range n.File().Chunks {
		at := len(content)
		content = append(content, make([]byte, c.Size)...)
		if _, err := blocks.source.ReadChunk(ctx, c, content[at:]); err != nil {
			return nil, i.wrap(err, "read a file of")
		}
	}
	return content, nil
}

// blob reads one of the image's blobs from the local copy if that is good, else
// from the store, and then keeps a local copy.
func (i *Image) blob(ctx context.Context, d store.Digest, size int64) ([]byte, error) {
	path := i.images.blobPath(i.Workspace, d)
	if st, err := os.Stat(path); err == nil && st.Size() == size {
		b, err := os.ReadFile(path)
		if err == nil && store.Sum(b) == d {
			return b, nil
		}
		i.images.log.Warn("the local copy of an image's metadata is damaged; it is fetched again", "image", i.Digest.Short(), "path", path)
	}
	b, err := i.store.GetBlob(ctx, d, size)
	if err != nil {
		return nil, noCopy(err)
	}
	if int64(len(b)) != size || store.Sum(b) != d {
		return nil, noCopy(fault.New(fault.Corrupt, "blob %s is not what its digest says", d.Short()))
	}
	return b, keep(path, b)
}

// noCopy turns "not found" for something that a manifest promises into corruption,
// and says what helps.
func noCopy(err error) error {
	class := fault.ClassOf(err)
	if class != fault.NotFound && class != fault.Corrupt {
		return err
	}
	e := &fault.Error{Class: fault.Corrupt, Err: err}
	return e.WithHint("No good copy of this part of the image is left. Import or build the image again.")
}
