package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// run is what one request reads: chunks of one pack without large gaps.
type run struct {
	pack   Digest
	chunks []*coming
}

func (r run) from() int64 { return int64(r.chunks[0].Offset) }
func (r run) to() int64   { c := r.chunks[len(r.chunks)-1]; return int64(c.Offset) + int64(c.Stored) }

// plan is one attempt at a stream: what it reads, and what it leaves to others that are
// under way.
type plan struct {
	s       *Store
	runs    []run
	pending []*coming // those of all runs, in order
	others  []other
	read    atomic.Int64 // bytes, gaps included
	began   time.Time
}

// other is a chunk that another stream is about to bring, and where it lies for this one.
type other struct {
	pack  HotPack // without frames
	frame Frame
	by    *coming
}

// plan claims what the cache does not have of packs, and what nobody has claimed: of
// several streams of the same packs at once one reads all.
func (s *Store) plan(packs []HotPack) *plan {
	x := &plan{s: s, began: time.Now()}
	t := &s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[Digest]*coming{}
	}
	var before int64 // bytes of the runs before cur
	for _, p := range packs {
		how := packSeal{sealed: s.opts.Sealed, epoch: p.Epoch}
		var cur *run
		for _, f := range p.Frames {
			if s.opts.Cache.Has(f.Digest) {
				continue
			}
			if cur != nil && int64(f.Offset) < cur.to() || f.Size == 0 || f.Size > ChunkSize || f.Stored > MaxFrame {
				continue // out of order, or no chunk: whoever made this list is wrong
			}
			by := t.by[f.Digest]
			if by != nil && by.Size == f.Size {
				if by.of != x {
					x.others = append(x.others, other{HotPack{Pack: p.Pack, Epoch: p.Epoch}, f, by})
				}
				continue
			}
			if cur == nil || int64(f.Offset)-cur.to() > streamGap {
				if cur != nil {
					before += cur.to() - cur.from()
				}
				x.runs = append(x.runs, run{pack: p.Pack})
				cur = &x.runs[len(x.runs)-1]
			}
			c := &coming{Frame: f, of: x, how: how, done: make(chan struct{}), left: make(chan struct{}), users: 1}
			cur.chunks = append(cur.chunks, c)
			c.end = before + cur.to() - cur.from()
			x.pending = append(x.pending, c)
			if by == nil {
				t.by[f.Digest] = c
			}
		}
		if cur != nil {
			before += cur.to() - cur.from()
		}
	}
	return x
}

// await waits for the chunks that others bring: how many these have brought, and where
// the rest is.
func (x *plan) await(ctx context.Context) (brought int64, rest []HotPack, err error) {
	for _, o := range x.others {
		select {
		case <-o.by.left:
		case <-ctx.Done():
			return brought, rest, ctx.Err()
		}
		if o.by.err == nil {
			brought++
			continue
		}
		if n := len(rest); n == 0 || rest[n-1].Pack != o.pack.Pack {
			rest = append(rest, o.pack)
		}
		last := &rest[len(rest)-1]
		last.Frames = append(last.Frames, o.frame)
	}
	return brought, rest, nil
}

// coming is a chunk that a stream is going to bring.
type coming struct {
	Frame
	of    *plan
	how   packSeal
	end   int64         // bytes of the stream up to and with it
	done  chan struct{} // closed when data or err is valid
	left  chan struct{} // closed when it is no longer coming: the cache has it, or err says why not
	stale bool          // was in the cache when its turn came
	err   error

	data  *[ChunkSize]byte
	users int // readers and the stream; at 0 data goes back; guarded by streams.mu
}

// streams are the chunks that are coming, by digest.
type streams struct {
	mu sync.Mutex
	by map[Digest]*coming
}

// find gives the coming chunk, to be released.
func (t *streams) find(c Chunk) *coming {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.by[c.Digest]
	if p == nil || p.Size != c.Size {
		return nil
	}
	p.users++
	return p
}

func (t *streams) release(p *coming) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.users--; p.users == 0 && p.data != nil {
		chunkBuffers.Put(p.data)
		p.data = nil
	}
}

// leave takes chunks off the list, all at once, so that one other stream can claim all of
// them: they are in the cache now, or will not come.
func (t *streams) leave(list ...*coming) {
	t.mu.Lock()
	for _, p := range list {
		if t.by[p.Digest] == p {
			delete(t.by, p.Digest)
		}
	}
	t.mu.Unlock()
	for _, p := range list {
		close(p.left)
		t.release(p)
	}
}

// wait fills dst with a chunk that a stream brings, and reports whether one did.
func (t *streams) wait(ctx context.Context, c Chunk, dst []byte, patience time.Duration) (bool, error) {
	p := t.find(c)
	if p == nil {
		return false, nil
	}
	defer t.release(p)
	var tick *time.Timer
	for {
		select {
		case <-p.done:
			if p.err != nil || p.data == nil {
				return false, nil
			}
			copy(dst, p.data[:c.Size])
			return true, nil
		default:
		}
		if !p.near(patience) {
			return false, nil
		}
		at := p.of.read.Load()
		if tick == nil {
			tick = time.NewTimer(patience)
			defer tick.Stop()
		} else {
			tick.Reset(patience)
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return false, fault.Wrap(ctx.Err(), "read chunk", c.String())
		case <-tick.C:
			if p.of.read.Load() == at {
				return false, nil // it does not move
			}
		}
	}
}

// near reports whether a chunk is going to come within patience, as far as one can
// tell: reading it by itself would take about as long, and some of the bandwidth.
func (p *coming) near(patience time.Duration) bool {
	const least = 1 << 20 // a stream that has just begun has no rate yet
	read := p.of.read.Load()
	rate := float64(read) / max(time.Since(p.of.began).Seconds(), 1e-3)
	return p.end-read <= max(least, int64(rate*patience.Seconds()))
}

// brings reports whether a stream is going to bring a chunk.
func (t *streams) brings(c Chunk) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.by[c.Digest]
	return p != nil && p.Size == c.Size
}
