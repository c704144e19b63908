package store

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
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
	Known         int64 // chunks that somebody else brought meanwhile
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
// it gets on. Chunks that the cache has are left out where that saves a transfer, and
// so are those that another Stream is about to bring: this one waits for them, and brings
// what the other has not.
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
		p := s.plan(packs)
		if len(p.runs) == 0 && len(p.others) == 0 {
			err = nil // whoever could not wait has brought the rest
			break
		}
		before := done.Chunks + done.Damaged
		if err = s.carryOut(ctx, p, &done); err == nil {
			var known int64
			known, packs, err = p.await(ctx)
			done.Known += known
		}
		if ctx.Err() != nil || fault.Is(err, fault.Corrupt) || fault.Is(err, fault.NotFound) {
			break
		}
		if err == nil {
			continue
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

// carryOut reads the runs of a plan, one behind the other, and adds to done.
func (s *Store) carryOut(ctx context.Context, x *plan, done *Streamed) error {
	if len(x.runs) == 0 {
		return nil
	}
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
	read, err := x.receive(ctx, jobs, order)
	for _, p := range x.pending[read:] {
		p.err = errStream
		close(p.done)
	}
	s.streams.leave(x.pending[read:]...)
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
func (x *plan) receive(ctx context.Context, jobs, order chan<- *arrival) (handed int, err error) {
	// The watchdog ends a read that gives nothing for so long.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := fault.New(fault.Timeout, "the origin sent nothing for %v", x.s.opts.ReadTimeout)
	watchdog := time.AfterFunc(x.s.opts.ReadTimeout, func() { cancel(quiet) })
	defer watchdog.Stop()

	next := x.open(ctx, x.runs[0])
	for i, r := range x.runs {
		got := <-next
		if got.err != nil {
			return handed, x.broken(ctx, got.err, r)
		}
		next = nil
		at := r.from()
		for _, p := range r.chunks {
			if next == nil && i+1 < len(x.runs) && r.to()-int64(p.Offset) <= streamAhead {
				next = x.open(ctx, x.runs[i+1])
			}
			a := &arrival{p: p, frame: frameBuffers.Get().(*frameBuffer)}
			_, err := io.CopyN(io.Discard, got.r, int64(p.Offset)-at)
			if err == nil {
				_, err = io.ReadFull(got.r, a.frame[:p.Stored])
			}
			if err != nil {
				got.r.Close()
				drop(next)
				return handed, x.broken(ctx, err, r)
			}
			watchdog.Reset(x.s.opts.ReadTimeout)
			at = int64(p.Offset) + int64(p.Stored)
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

func (x *plan) broken(ctx context.Context, err error, r run) error {
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
func (x *plan) open(ctx context.Context, r run) <-chan opened {
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
