package store

import (
	"context"
	"sync"
)

// flight is one chunk on its way from the origin, wanted by one or more readers.
// When it has landed, readers have the content, and it goes on into the cache.
type flight struct {
	done   chan struct{}
	kept   chan struct{} // closed when the cache has it, or will not
	buf    *[ChunkSize]byte
	size   uint32
	tier   Tier // valid, with err and the content of buf, when done is closed
	err    error
	cancel context.CancelFunc
	wanted int // readers waiting or copying, and the fetcher until it is kept; guarded by flights.mu
}

// flights are those in the air, by digest.
type flights struct {
	mu sync.Mutex
	by map[Digest]*flight
}

var chunkBuffers = sync.Pool{New: func() any { return new([ChunkSize]byte) }}

// join gives the flight for c, and whether it is new, to be flown by the caller.
func (f *flights) join(ctx context.Context, c Chunk) (*flight, context.Context, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.by[c.Digest]; fl != nil && fl.size == c.Size {
		fl.wanted++
		return fl, nil, false
	}
	if f.by == nil {
		f.by = map[Digest]*flight{}
	}
	// Without a name in the table if the same digest flies with another length,
	// which is somebody's mistake and will not verify.
	fl := &flight{done: make(chan struct{}), kept: make(chan struct{}), buf: chunkBuffers.Get().(*[ChunkSize]byte), size: c.Size, wanted: 2}
	ctx, fl.cancel = context.WithCancel(ctx)
	if f.by[c.Digest] == nil {
		f.by[c.Digest] = fl
	}
	return fl, ctx, true
}

// leave is called by each reader and by the fetcher when it no longer needs the
// flight. When only the fetcher is left there is nobody to fetch for.
func (f *flights) leave(d Digest, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.wanted--
	switch fl.wanted {
	case 1:
		select {
		case <-fl.done:
		default:
			fl.cancel()
			f.forget(d, fl)
		}
	case 0:
		f.forget(d, fl)
		chunkBuffers.Put(fl.buf)
	}
}

// land lets the readers copy.
func (f *flights) land(fl *flight) {
	close(fl.done)
	fl.cancel()
}

// fail ends the flight without content; newcomers start another.
func (f *flights) fail(d Digest, fl *flight, err error) {
	fl.err = err
	f.mu.Lock()
	f.forget(d, fl)
	f.mu.Unlock()
	f.land(fl)
	f.finish(d, fl)
}

// finish ends a flight that has landed.
func (f *flights) finish(d Digest, fl *flight) {
	f.mu.Lock()
	f.forget(d, fl)
	f.mu.Unlock()
	close(fl.kept)
	f.leave(d, fl)
}

// settle waits until a chunk that has landed is in the cache, or will not be.
func (f *flights) settle(ctx context.Context, d Digest) {
	f.mu.Lock()
	fl := f.by[d]
	f.mu.Unlock()
	if fl == nil {
		return
	}
	select {
	case <-fl.done:
	default:
		return
	}
	select {
	case <-fl.kept:
	case <-ctx.Done():
	}
}

func (f *flights) forget(d Digest, fl *flight) {
	if f.by[d] == fl {
		delete(f.by, d)
	}
}
