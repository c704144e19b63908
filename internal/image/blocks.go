package image

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// readParallel is how many chunks one ReadAt reads at once. The kernel asks for
// at most 1 MiB at a time, which is 8 whole chunks.
const readParallel = 8

// recentChunks is how many chunks a Blocks remembers for reads of less than a
// chunk: 2 MiB, enough for a handful of files that are read in small steps.
const recentChunks = 16

// Blocks is an image's device as bytes: what its EROFS metadata finds data in.
// Safe for concurrent use. It has nothing to close.
type Blocks struct {
	dev     *device
	touches touches
	read    func(ctx context.Context, c store.Chunk, dst []byte) (store.Tier, error)
	recent  [recentChunks]recentChunk
	free    sync.Pool // of *[]byte, ChunkSize long
	stats   struct{ originBytes, originChunks, peerBytes, peerChunks, cacheBytes, cacheChunks atomic.Int64 }
	failed  atomic.Pointer[error]
}

// recentChunk is a chunk that was read lately; chunk i is remembered at i modulo
// recentChunks, so that neighbours do not displace each other.
type recentChunk struct {
	mu    sync.Mutex
	index int
	data  *[]byte // nil: none
}

// BlockStats counts what has been read of an image, by where it came from, since
// it was first asked for its blocks. Chunks that a Blocks remembers are not
// counted again.
type BlockStats struct {
	OriginBytes, OriginChunks int64
	PeerBytes, PeerChunks     int64
	CacheBytes, CacheChunks   int64
}

func newBlocks(dev *device, read func(context.Context, store.Chunk, []byte) (store.Tier, error)) *Blocks {
	b := &Blocks{dev: dev, read: read, touches: newTouches(len(dev.chunks))}
	b.free.New = func() any {
		p := make([]byte, store.ChunkSize)
		return &p
	}
	return b
}

// Size is the device's length in bytes, a multiple of store.BlockSize.
func (b *Blocks) Size() int64 { return int64(b.dev.blocks()) * store.BlockSize }

// Chunks lists what the device consists of, in its order. The caller must not change it.
func (b *Blocks) Chunks() []store.Chunk { return b.dev.chunks }

// Offset is the byte at which chunk i of Chunks begins.
func (b *Blocks) Offset(i int) int64 { return int64(b.dev.starts[i]) * store.BlockSize }

// Stats gives the counts so far.
func (b *Blocks) Stats() BlockStats {
	s := &b.stats
	return BlockStats{
		OriginBytes: s.originBytes.Load(), OriginChunks: s.originChunks.Load(),
		PeerBytes: s.peerBytes.Load(), PeerChunks: s.peerChunks.Load(),
		CacheBytes: s.cacheBytes.Load(), CacheChunks: s.cacheChunks.Load(),
	}
}

// ReadAt fills p with the bytes at off, from as many chunks as it spans, several
// at a time. Between the end of a chunk and the next block are zeros. All of p
// must lie inside the device; after an error its content is undefined.
func (b *Blocks) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > b.Size()-int64(len(p)) {
		return fault.New(fault.Invalid, "read of %d bytes at %d of an image of %d", len(p), off, b.Size())
	}
	if len(p) == 0 {
		return nil
	}
	first := b.dev.at(uint32(off / store.BlockSize))
	for i := first; b.Offset(i) < off+int64(len(p)); i++ {
		b.touches.note(i)
	}
	var err error
	if off+int64(len(p)) <= b.Offset(first+1) {
		err = b.part(ctx, first, p, off-b.Offset(first))
	} else {
		err = b.span(ctx, first, p, off)
	}
	if err != nil && ctx.Err() == nil {
		failure := err // its own, so that a read without a failure allocates nothing
		b.failed.Store(&failure)
	}
	return err
}

// Failure points to the error of the last ReadAt that failed, or is nil; another
// failure has another pointer. The kernel gives those who read a file EIO only.
func (b *Blocks) Failure() *error { return b.failed.Load() }

// span reads from several chunks.
func (b *Blocks) span(ctx context.Context, first int, p []byte, off int64) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readParallel)
	for i := first; len(p) > 0; i++ {
		at := off - b.Offset(i)
		n := min(int64(len(p)), b.Offset(i+1)-off)
		piece := p[:n]
		p, off = p[n:], off+n
		g.Go(func() error { return b.part(ctx, i, piece, at) })
	}
	return g.Wait()
}

// part fills p from chunk i and the zeros behind it, beginning at byte at of it.
func (b *Blocks) part(ctx context.Context, i int, p []byte, at int64) error {
	c := b.dev.chunks[i]
	size := int64(c.Size)
	if end := at + int64(len(p)); end > size {
		clear(p[max(size-at, 0):])
		p = p[:max(size-at, 0)]
	}
	if len(p) == 0 {
		return nil
	}
	if int64(len(p)) == size {
		return b.load(ctx, c, p)
	}
	r := &b.recent[i%recentChunks]
	r.mu.Lock()
	if r.data != nil && r.index == i {
		copy(p, (*r.data)[at:])
		r.mu.Unlock()
		return nil
	}
	r.mu.Unlock()

	data := b.free.Get().(*[]byte)
	if err := b.load(ctx, c, (*data)[:size]); err != nil {
		b.free.Put(data)
		return err
	}
	copy(p, (*data)[at:size])
	r.mu.Lock()
	r.index, r.data, data = i, data, r.data
	r.mu.Unlock()
	if data != nil {
		b.free.Put(data)
	}
	return nil
}

// load reads one whole chunk and counts it.
func (b *Blocks) load(ctx context.Context, c store.Chunk, dst []byte) error {
	tier, err := b.read(ctx, c, dst)
	switch {
	case err != nil:
		return err
	case tier == store.FromCache:
		b.stats.cacheBytes.Add(int64(c.Size))
		b.stats.cacheChunks.Add(1)
	case tier == store.FromPeer:
		b.stats.peerBytes.Add(int64(c.Size))
		b.stats.peerChunks.Add(1)
	default:
		b.stats.originBytes.Add(int64(c.Size))
		b.stats.originChunks.Add(1)
	}
	return nil
}
