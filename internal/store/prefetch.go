package store

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

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
	for range min(s.prefetching.workers(), len(chunks)) {
		wg.Go(work)
	}
	wg.Wait()
	return done, fault.Wrap(context.Cause(ctx), "prefetch", "chunks")
}

// prefetch reads one chunk when there is nothing more urgent.
func (s *Store) prefetch(ctx context.Context, c Chunk) error {
	leave, err := s.prefetching.enter(ctx, c)
	if err != nil {
		return err
	}
	defer leave()
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

// prefetching bounds what Prefetch reads at once, in plain bytes.
type prefetching struct {
	most, least int64 // in all, and what the smallest chunk counts for
	sem         *semaphore.Weighted
}

// newPrefetching: of an origin on this machine as many chunks as leave a core to what
// runs, since a read is mostly decompression; of another 1 MiB, or 64 chunks of small
// files, which come in few requests. That hides its latency (8 chunks of 60 KB in 25 ms
// are 19 MB/s) and keeps little in the way of a read that somebody waits for.
func newPrefetching(o Origin) prefetching {
	p := prefetching{most: 8 * ChunkSize, least: ChunkSize / 8}
	if _, here := o.(filePutter); here {
		p.most, p.least = int64(max(1, min(runtime.GOMAXPROCS(0)/2, 4)))*ChunkSize, ChunkSize
	}
	p.sem = semaphore.NewWeighted(p.most)
	return p
}

// workers is how many chunks there are at once at most.
func (p *prefetching) workers() int { return int(p.most / p.least) }

func (p *prefetching) enter(ctx context.Context, c Chunk) (leave func(), err error) {
	n := max(int64(c.Size), p.least)
	if err := p.sem.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return func() { p.sem.Release(n) }, nil
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
