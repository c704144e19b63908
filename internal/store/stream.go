package store

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// Frame is where a chunk lies in a pack: one entry of the pack's index.
type Frame struct {
	Chunk
	Offset, Stored uint32 // of the stored bytes in the pack, and how many
	Raw            bool   // they are the content itself
}

// HotPack is a pack and what is wanted of it, in the order of offsets. Whoever
// has it can read the pack without having read its index.
type HotPack struct {
	Pack   Digest
	Epoch  uint32 // of its seal; 0 if the store is not sealed
	Frames []Frame
}

// MaxFrame bounds Frame.Stored: a sealed chunk that does not compress.
const MaxFrame = ChunkSize + seal.Overhead

// Streamed says what a Stream did.
type Streamed struct {
	Chunks, Bytes int64 // that it brought into the cache, in plain bytes
	Stored        int64 // bytes transferred
	Known         int64 // chunks that somebody else had brought when they arrived
	Damaged       int64 // chunks whose bytes in the pack are wrong
}

// What is read of a pack but not wanted costs bandwidth; another request costs a
// round trip. They are even at streamGap: 20 ms of 100 Mbit/s.
const streamGap = 256 << 10

// streamAhead is how much of one read is still to come when the next is asked for.
const streamAhead = 1 << 20

// streamDepth is how many chunks are between the origin and the cache, a
// quarter of a MiB each.
const streamDepth = 32

// streamFailures is how many damaged chunks in a row end a stream: its index does
// not describe the pack.
const streamFailures = 8

// Stream reads packs from the origin from beginning to end and puts the chunks
// that are wanted of them into the cache, in order, so that they lie side by side
// there. It needs nothing of the store's own index.
//
// While it runs, ReadChunk of a chunk that it is about to bring waits for it
// instead of reading that a second time; one that is far ahead, or that has waited for
// Options.Patience without a byte arriving, reads by itself. When the stream
// breaks, those who wait are let go at once; the stream then tries again as long as
// it gets on. Chunks that the cache has are left out where that saves a transfer.
//
// It returns when all has been read, has failed, or ctx has ended. A damaged chunk is not an
// error but counted; fault.Corrupt means that the packs are not what packs says.
func (s *Store) Stream(ctx context.Context, packs []HotPack) (done Streamed, err error) {
	if s.opts.Cache == nil {
		return done, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	const attempts = 3 // in a row that bring nothing
	for failed := 0; ; {
		runs := s.missing(packs)
		if len(runs) == 0 {
			err = nil // whoever could not wait has brought the rest
			break
		}
		before := done.Chunks + done.Damaged
		if err = s.streamRuns(ctx, runs, &done); err == nil || ctx.Err() != nil || fault.Is(err, fault.Corrupt) || fault.Is(err, fault.NotFound) {
			break
		}
		if failed++; done.Chunks+done.Damaged > before {
			failed = 0
		}
		if failed == attempts {
			break
		}
		select {
		case <-time.After(time.Duration(failed) * 100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if s.ctx.Err() != nil {
		return done, errClosed()
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return done, fault.Wrap(err, "stream", "hot pack")
}

// run is what one request reads: frames of one pack without large gaps.
type run struct {
	pack   Digest
	how    packSeal
	frames []Frame
}

func (r run) from() int64 { return int64(r.frames[0].Offset) }
func (r run) to() int64   { f := r.frames[len(r.frames)-1]; return int64(f.Offset) + int64(f.Stored) }

// missing cuts packs into runs of what the cache does not have.
func (s *Store) missing(packs []HotPack) (runs []run) {
	for _, p := range packs {
		var cur *run
		for _, f := range p.Frames {
			if s.opts.Cache.Has(f.Digest) {
				continue
			}
			if cur != nil && int64(f.Offset) < cur.to() || f.Size == 0 || f.Size > ChunkSize || f.Stored > MaxFrame {
				continue // out of order, or no chunk: whoever made this list is wrong
			}
			if cur == nil || int64(f.Offset)-cur.to() > streamGap {
				runs = append(runs, run{pack: p.Pack, how: packSeal{sealed: s.opts.Sealed, epoch: p.Epoch}})
				cur = &runs[len(runs)-1]
			}
			cur.frames = append(cur.frames, f)
		}
	}
	return runs
}

// stream is one attempt.
type stream struct {
	s       *Store
	total   int64 // bytes, gaps included
	read    atomic.Int64
	began   time.Time
	pending []*coming // in order
}

// coming is a chunk that a stream is going to bring.
type coming struct {
	Frame
	of    *stream
	how   packSeal
	end   int64         // bytes of the stream up to and with it
	done  chan struct{} // closed when data or err is valid
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

func (t *streams) enter(list []*coming) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[Digest]*coming{}
	}
	for _, c := range list {
		if t.by[c.Digest] == nil {
			t.by[c.Digest] = c
		}
	}
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

// leave takes a chunk off the list: it is in the cache now, or will not come.
func (t *streams) leave(p *coming) {
	t.mu.Lock()
	if t.by[p.Digest] == p {
		delete(t.by, p.Digest)
	}
	t.mu.Unlock()
	t.release(p)
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

// streamRuns reads the runs, one behind the other, and adds to done.
func (s *Store) streamRuns(ctx context.Context, runs []run, done *Streamed) error {
	x := &stream{s: s, began: time.Now()}
	for _, r := range runs {
		base := x.total
		for _, f := range r.frames {
			x.pending = append(x.pending, &coming{
				Frame: f, of: x, how: r.how, end: base + int64(f.Offset) + int64(f.Stored) - r.from(), done: make(chan struct{}), users: 1,
			})
		}
		x.total = base + r.to() - r.from()
	}
	s.streams.enter(x.pending)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := make(chan *arrival)
	order := make(chan *arrival, streamDepth)
	var wg sync.WaitGroup
	// Half of the cores, because what runs on the image wants some too.
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		wg.Go(func() {
			for a := range jobs {
				a.decode(s)
				close(a.p.done)
			}
		})
	}
	wg.Go(func() {
		row := 0
		for a := range order {
			<-a.p.done
			if s.settle(a, done) {
				row = 0
			} else if row++; row == streamFailures {
				cancel(fault.New(fault.Corrupt, "%d chunks in a row are not what the index says", row))
			}
		}
	})
	read, err := x.receive(ctx, runs, jobs, order)
	for _, p := range x.pending[read:] {
		p.err = errStream
		close(p.done)
		s.streams.leave(p)
	}
	close(jobs)
	close(order)
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

var errStream = errors.New("the stream has ended")

// arrival is a chunk that has been read and is being unpacked.
type arrival struct {
	p     *coming
	frame *frameBuffer
}

func (a *arrival) decode(s *Store) {
	p := a.p
	defer frameBuffers.Put(a.frame)
	if s.opts.Cache.Has(p.Digest) {
		p.stale = true // somebody could not wait
		return
	}
	data := chunkBuffers.Get().(*[ChunkSize]byte)
	if p.err = s.openFrame(p.Chunk, p.how, a.frame[:p.Stored], p.Raw, data[:p.Size]); p.err != nil {
		chunkBuffers.Put(data)
		return
	}
	p.data = data // nobody looks before done is closed
}

// settle puts a chunk into the cache and takes it off the list; it reports
// whether the chunk was good.
func (s *Store) settle(a *arrival, done *Streamed) bool {
	p := a.p
	defer s.streams.leave(p)
	done.Stored += int64(p.Stored)
	s.counters.storedBytes.Add(int64(p.Stored))
	switch {
	case p.err != nil:
		if done.Damaged++; done.Damaged == 1 {
			s.log.Warn("a chunk of a hot pack is damaged", "chunk", p.Digest, "err", p.err)
		}
		s.counters.damagedReads.Add(1)
		return false
	case p.stale:
		done.Known++
		s.counters.streamedTwice.Add(1)
		return true
	}
	if err := s.opts.Cache.Write(p.Chunk, p.data[:p.Size]); err != nil {
		s.cacheFailed("write", p.Chunk, err)
	} else {
		s.announce(p.Chunk)
	}
	done.Chunks++
	done.Bytes += int64(p.Size)
	s.counters.streamedChunks.Add(1)
	s.counters.streamedBytes.Add(int64(p.Size))
	return true
}

// receive reads the runs from the origin and hands the frames on. It gives the
// number of chunks that it has handed on.
func (x *stream) receive(ctx context.Context, runs []run, jobs, order chan<- *arrival) (handed int, err error) {
	// The watchdog ends a read that gives nothing for so long.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := fault.New(fault.Timeout, "the origin sent nothing for %v", x.s.opts.ReadTimeout)
	watchdog := time.AfterFunc(x.s.opts.ReadTimeout, func() { cancel(quiet) })
	defer watchdog.Stop()

	next := x.open(ctx, runs[0])
	for i, r := range runs {
		got := <-next
		if got.err != nil {
			return handed, x.broken(ctx, got.err, r)
		}
		next = nil
		at := r.from()
		for _, f := range r.frames {
			if next == nil && i+1 < len(runs) && r.to()-int64(f.Offset) <= streamAhead {
				next = x.open(ctx, runs[i+1])
			}
			p := x.pending[handed]
			a := &arrival{p: p, frame: frameBuffers.Get().(*frameBuffer)}
			_, err := io.CopyN(io.Discard, got.r, int64(f.Offset)-at)
			if err == nil {
				_, err = io.ReadFull(got.r, a.frame[:f.Stored])
			}
			if err != nil {
				got.r.Close()
				drop(next)
				return handed, x.broken(ctx, err, r)
			}
			watchdog.Reset(x.s.opts.ReadTimeout)
			at = int64(f.Offset) + int64(f.Stored)
			x.read.Store(p.end)
			select {
			case order <- a:
			case <-ctx.Done():
				got.r.Close()
				drop(next)
				return handed, context.Cause(ctx)
			}
			jobs <- a // the workers live until we are done
			handed++
		}
		got.r.Close()
	}
	return handed, nil
}

func (x *stream) broken(ctx context.Context, err error, r run) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.New(fault.Unavailable, "pack %s ended early", r.pack.Short())
	}
	return fault.Wrap(err, "read pack", r.pack.Short())
}

// opened is a run of a pack that is being read, or why it cannot.
type opened struct {
	r   io.ReadCloser
	err error
}

// open asks for a run; the answer comes once.
func (x *stream) open(ctx context.Context, r run) <-chan opened {
	c := make(chan opened, 1)
	go func() {
		body, err := x.s.opts.Origin.Open(ctx, packKey(r.pack), r.from())
		c <- opened{body, err}
	}()
	return c
}

// drop closes what was asked for and is not needed.
func drop(c <-chan opened) {
	if c == nil {
		return
	}
	if o := <-c; o.err == nil {
		o.r.Close()
	}
}

// brings reports whether a stream is going to bring a chunk.
func (t *streams) brings(c Chunk) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.by[c.Digest]
	return p != nil && p.Size == c.Size
}
