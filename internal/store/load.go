package store

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
)

// loadTimeout bounds one attempt at loading the index. It is long, because a new
// machine may have ten thousand packs to look at; who waits has a deadline of
// its own.
const loadTimeout = 10 * time.Minute

// loadRun is one attempt at loading the index.
type loadRun struct {
	done chan struct{}
	err  error // valid when done is closed
}

// await returns when the index is complete. If an attempt at loading has failed,
// it makes another: the origin may be back.
func (s *Store) await(ctx context.Context) error {
	if s.loaded.Load() {
		return nil
	}
	run := s.startLoading()
	if run == nil {
		return errClosed()
	}
	select {
	case <-run.done:
		return run.err
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "load", "index of the packs")
	case <-s.ctx.Done():
		return errClosed()
	}
}

// startLoading gives the attempt in progress, or a new one; nil if the store is closed.
func (s *Store) startLoading() *loadRun {
	s.loading.Lock()
	defer s.loading.Unlock()
	if run := s.loading.now; run != nil {
		select {
		case <-run.done:
			if run.err == nil {
				return run
			}
		default:
			return run
		}
	}
	if s.ctx.Err() != nil {
		return nil
	}
	run := &loadRun{done: make(chan struct{})}
	s.loading.now = run
	s.wg.Go(func() {
		defer close(run.done)
		ctx, cancel := context.WithTimeout(s.ctx, loadTimeout)
		defer cancel()
		if run.err = s.load(ctx); run.err != nil {
			s.log.Warn("loading the index of the packs failed", "err", run.err)
			return
		}
		s.loaded.Store(true)
	})
	return run
}

// load fills the index: from the local copy for the packs that it knows, from
// the packs themselves for others. What packs there are is the origin's to say.
func (s *Store) load(ctx context.Context) error {
	logged, rewrite, err := s.logged.read()
	if err != nil {
		s.log.Warn("the local copy of the packs' indexes is unreadable and will be built anew", "err", err)
	}
	var (
		mu      sync.Mutex
		current = map[Digest]*loggedPack{}
		chunks  int
		group   errgroup.Group
	)
	group.SetLimit(s.opts.Parallel)
	err = s.opts.Origin.List(ctx, "packs/", func(o Object) error {
		key, size := o.Key, o.Size
		d, ok := keyDigest("packs/", key)
		if !ok {
			s.log.Warn("the origin has an object that is not a pack", "key", key)
			return nil
		}
		if p := logged[d]; p != nil && p.size == size {
			mu.Lock()
			current[d] = p
			chunks += p.index.len()
			mu.Unlock()
			return nil
		}
		group.Go(func() error {
			x, err := decodePackIndex(size, func(p []byte, off int64) error {
				return s.opts.Origin.ReadAt(ctx, key, p, off)
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case fault.Is(err, fault.Corrupt):
				s.log.Error("a pack is damaged; images that use it have to be imported again", "pack", d, "err", err)
				s.index.markUnreadable(d)
			case fault.Is(err, fault.NotFound): // deleted meanwhile
			case err != nil:
				return fault.Wrap(err, "read index of pack", d.Short())
			default:
				current[d] = &loggedPack{size: size, index: x}
				chunks += x.len()
				rewrite = true
			}
			return nil
		})
		return ctx.Err()
	})
	if waited := group.Wait(); err == nil {
		err = waited
	}
	if err != nil {
		return fault.Wrap(err, "load", "index of the packs")
	}
	s.index.grow(chunks)
	for d, p := range current {
		s.index.add(&pack{digest: d, size: p.size, index: p.index})
		for _, chunk := range p.damaged {
			s.index.markDamaged(chunk, d)
		}
	}
	if rewrite || len(logged) > 2*len(current) {
		err = s.logged.create(current)
	} else {
		err = s.logged.open()
	}
	if err != nil {
		s.log.Warn("the local copy of the packs' indexes cannot be kept; the next opening will be slower", "err", err)
	}
	return nil
}
