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
	source  source
	recent  [recentChunks]recentChunk
	free    sync.Pool // of *[]byte, ChunkSize long
	stats   struct{ originBytes, originChunks, peerBytes, peerChunks, cacheBytes, cacheChunks atomic.Int64 }
	failed  atomic.Pointer[error]
}

// source is where chunks come from: a store.Reader.
type source interface {
	ReadChunk(ctx context.Context, c store.Chunk, dst []byte) (store.Tier, error)
	ReadRun(chunks []store.Chunk, dst []byte, off int64) bool
}

// recentChunk is a chunk that was read lately; chunk i is remembered at i modulo
// recentChunks, so that neighbours do not displace each other.
type recentChunk struct {
	mu    sync.Mutex
	index int
	data  *[]byte // nil: none
}

// BlockStats counts what has been read of an image, by where it came from, since
// it was first asked for its blocks. Chunks that a Blocks remembers are not counted
// again. One that the cache gives in parts is counted with its last byte.
type BlockStats struct {
	OriginBytes, OriginChunks int64
	PeerBytes, PeerChunks     int64
	CacheBytes, CacheChunks   int64
}

func newBlocks(dev *device, source source) *Blocks {
	b := &Blocks{dev: dev, source: source, touches: newTouches(len(dev.chunks))}
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
	last := first
	for ; b.Offset(last) < off+int64(len(p)); last++ {
		b.touches.note(last)
	}
	if b.near(first, last, p, off) {
		return nil
	}
	var err error
	if last == first+1 {
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

// near fills p from the chunks from first to before last, if none of them has to be
// read whole: the cache has verified them, or the only one was read lately. The
// kernel asks for 64 KiB at a time of a file of which it has read little, and
// for both halves of a chunk at once.
func (b *Blocks) near(first, last int, p []byte, off int64) bool {
	off -= b.Offset(first)
	if last == first+1 && b.remembered(first, p, off) {
		return true
	}
	chunks := b.dev.chunks[first:last]
	if !b.source.ReadRun(chunks, p, off) {
		return false
	}
	end := off + int64(len(p))
	for i, c := range chunks {
		from := b.Offset(first+i) - b.Offset(first)
		to := from + int64(c.Size)
		b.stats.cacheBytes.Add(max(0, min(to, end)-max(from, off)))
		if off < to && to <= end {
			b.stats.cacheChunks.Add(1)
		}
	}
	return true
}

// span reads from several chunks, of which some have to be read whole.
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

// remembered fills p from chunk i, and the zeros behind it, if it was read lately.
func (b *Blocks) remembered(i int, p []byte, at int64) bool {
	r := &b.recent[i%recentChunks]
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.data == nil || r.index != i {
		return false
	}
	p = within(b.dev.chunks[i], p, at)
	copy(p, (*r.data)[min(at, store.ChunkSize):])
	return true
}

// within gives what of p, at byte at of a chunk, lies in it, and clears the rest.
func within(c store.Chunk, p []byte, at int64) []byte {
	n := max(0, min(int64(len(p)), int64(c.Size)-at))
	clear(p[n:])
	return p[:n]
}

// part fills p from chunk i and the zeros behind it, beginning at byte at of it,
// and reads the chunk whole for that.
func (b *Blocks) part(ctx context.Context, i int, p []byte, at int64) error {
	c := b.dev.chunks[i]
	switch p = within(c, p, at); len(p) {
	case 0:
		return nil
	case int(c.Size):
		return b.load(ctx, c, p)
	}
	data := b.free.Get().(*[]byte)
	if err := b.load(ctx, c, (*data)[:c.Size]); err != nil {
		b.free.Put(data)
		return err
	}
	copy(p, (*data)[at:c.Size])
	r := &b.recent[i%recentChunks]
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
	tier, err := b.source.ReadChunk(ctx, c, dst)
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
