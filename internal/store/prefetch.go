package store

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"brisk.dev/brisk/internal/fault"
)

// Prefetched says what a Prefetch did.
type Prefetched struct {
	Chunks, Bytes int64 // that it brought into the cache, in plain bytes
	Known         int64 // chunks that were there, or were coming, already
}

// Prefetch reads chunks into the cache, in the order given, beside and below the
// reads that somebody waits for: it has slots of its own, begins nothing while
// several of those are under way, and a reader of a chunk that it is reading joins it.
// It holds no chunk longer than it takes to write it.
//
// It returns when all chunks have been looked at, or ctx has ended, or several in
// a row have failed; the error is the last one's.
func (s *Store) Prefetch(ctx context.Context, chunks []Chunk) (done Prefetched, err error) {
	if s.opts.Cache == nil || len(chunks) == 0 {
		return done, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errClosed()) })()
	const failures = 4 // in a row
	var (
		mu   sync.Mutex
		next int
		row  int
		wg   sync.WaitGroup
	)
	work := func() {
		for {
			mu.Lock()
			i := next
			next++
			mu.Unlock()
			if i >= len(chunks) || ctx.Err() != nil {
				return
			}
			c := chunks[i]
			if c.Size == 0 || c.Size > ChunkSize || c.Digest.IsZero() {
				continue
			}
			if s.opts.Cache.Has(c.Digest) || s.streams.brings(c) {
				mu.Lock()
				done.Known++
				mu.Unlock()
				continue
			}
			err := s.prefetch(ctx, c)
			mu.Lock()
			switch {
			case err == nil:
				done.Chunks++
				done.Bytes += int64(c.Size)
				row = 0
			case ctx.Err() == nil:
				if row++; row == failures {
					cancel(err)
				}
			}
			mu.Unlock()
		}
	}
	for range min(cap(s.prefetching), len(chunks)) {
		wg.Go(work)
	}
	wg.Wait()
	return done, fault.Wrap(context.Cause(ctx), "prefetch", "chunks")
}

// prefetch reads one chunk when there is nothing more urgent.
func (s *Store) prefetch(ctx context.Context, c Chunk) error {
	select {
	case s.prefetching <- struct{}{}:
		defer func() { <-s.prefetching }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.demand.calm(ctx); err != nil {
		return err
	}
	fl, flightCtx, mine := s.flights.join(s.ctx, c)
	defer s.flights.leave(c.Digest, fl)
	if mine && !s.spawn(func() { s.fly(flightCtx, c, fl) }) {
		s.flights.fail(c.Digest, fl, errClosed())
	}
	select {
	case <-fl.kept:
		if fl.err == nil && mine {
			s.counters.prefetchedChunks.Add(1)
			s.counters.prefetchedBytes.Add(int64(c.Size))
		}
		return fl.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// prefetchers is how many chunks Prefetch reads at once: of an origin on this machine as
// many as leave a core to what runs, since a read is mostly decompression; of
// another enough to hide its latency (8 chunks of 60 KB in 25 ms are 19 MB/s).
func prefetchers(o Origin) int {
	if _, here := o.(filePutter); here {
		return max(1, min(runtime.GOMAXPROCS(0)/2, 4))
	}
	return 8
}

// demand counts the reads that somebody waits for and the cache could not serve.
type demand struct {
	now  atomic.Int64
	mu   sync.Mutex
	wake chan struct{} // closed when now falls; nil if nobody asks
}

// crowd is from how many of them on nothing is prefetched. One alone is the rule
// while a program starts, and prefetching beside it the point.
const crowd = 2

func (d *demand) enter() { d.now.Add(1) }

func (d *demand) leave() {
	if d.now.Add(-1) != crowd-1 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wake != nil {
		close(d.wake)
		d.wake = nil
	}
}

// calm waits until fewer than crowd reads are under way.
func (d *demand) calm(ctx context.Context) error {
	for d.now.Load() >= crowd {
		d.mu.Lock()
		if d.now.Load() < crowd {
			d.mu.Unlock()
			break
		}
		if d.wake == nil {
			d.wake = make(chan struct{})
		}
		wake := d.wake
		d.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}
