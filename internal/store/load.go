package store

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
)

// What packs there are is known in three steps, each on demand:
//
//   - the local copy of indexes, read once, right after opening. Packs never
//     change, so what it says is good for reading whatever the origin does;
//   - packs that somebody expects to read from (Reader), a look at each;
//   - all packs of the origin (await), for whoever has to tell what is stored and
//     what is not: writers, Has, Collect. Reading needs it only as the last resort.

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

// readLog fills the index from the local copy. It is called once.
func (s *Store) readLog() {
	defer close(s.local)
	logged, rewrite, err := s.logged.read()
	if err != nil {
		s.log.Warn("the local copy of the packs' indexes is unreadable and will be built anew", "err", err)
	}
	chunks := 0
	for _, p := range logged {
		chunks += p.index.len()
	}
	s.index.grow(chunks)
	for d, p := range logged {
		s.index.add(newPack(d, p.size, p.index, p.how))
		for _, chunk := range p.damaged {
			s.index.markDamaged(chunk, d)
		}
	}
	if rewrite {
		s.rewriteLog()
	} else if err := s.logged.open(s.index, logged); err != nil {
		s.logUnkept(err)
	}
}

func (s *Store) rewriteLog() {
	if err := s.logged.create(s.index); err != nil {
		s.logUnkept(err)
	}
}

func (s *Store) logUnkept(err error) {
	s.log.Warn("the local copy of the packs' indexes cannot be kept; the next opening will be slower", "err", err)
}

// awaitLocal returns when the local copy has been read.
func (s *Store) awaitLocal(ctx context.Context) error {
	select {
	case <-s.local:
		return nil
	default:
	}
	select {
	case <-s.local:
		return nil
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "read", "local copy of the packs' indexes")
	}
}

// load makes the index what the origin lists.
func (s *Store) load(ctx context.Context) error {
	if err := s.awaitLocal(ctx); err != nil {
		return err
	}
	began := boottime()
	gone := s.index.names() // but for what is listed
	before := len(gone)
	var group errgroup.Group
	group.SetLimit(s.opts.Parallel)
	err := s.opts.Origin.List(ctx, "packs/", func(o Object) error {
		d, ok := keyDigest("packs/", o.Key)
		if !ok {
			s.log.Warn("the origin has an object that is not a pack", "key", o.Key)
			return nil
		}
		if size, ok := gone[d]; ok && size == o.Size {
			delete(gone, d)
			return nil
		}
		group.Go(func() error { return s.learn(ctx, d, o.Size) })
		return ctx.Err()
	})
	if waited := group.Wait(); err == nil {
		err = waited
	}
	if err != nil {
		return fault.Wrap(err, "load", "index of the packs")
	}
	for d, size := range gone {
		s.index.removeIfSize(d, size) // unless it has been written again meanwhile
	}
	s.listed.Store(int64(began))
	if before > 0 && len(gone) > before/2 {
		s.rewriteLog()
	}
	return nil
}

// learn reads the index of one pack. A pack that is damaged or gone is no error:
// the chunks that only it has will be.
func (s *Store) learn(ctx context.Context, d Digest, size int64) error {
	var x packIndex
	var how packSeal
	err := s.secondLook(ctx, func() (err error) {
		x, how, err = decodePackIndex(size, s.sealing(), func(p []byte, off int64) error {
			return s.opts.Origin.ReadAt(ctx, packKey(d), p, off)
		})
		return err
	})
	switch {
	case fault.Is(err, fault.Corrupt):
		if s.index.markUnreadable(d) {
			s.log.Error("a pack is damaged; images that use it have to be imported again", "pack", d, "err", err)
		}
		return nil
	case fault.Is(err, fault.NotFound): // deleted meanwhile
		return nil
	case err != nil:
		return fault.Wrap(err, "read index of pack", d.Short())
	}
	p := newPack(d, size, x, how)
	s.index.add(p)
	if err := s.logged.addPack(s.index, p, x); err != nil {
		s.logUnkept(err)
	}
	return nil
}

// expected are packs that readers say their chunks lie in, and that are not known yet.
type expected struct {
	mu    sync.Mutex
	packs map[Digest]struct{}
	turn  chan struct{} // held by whoever reads their indexes
}

func (s *Store) expect(packs []Digest) {
	e := &s.expected
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range packs {
		e.packs[d] = struct{}{}
	}
}

// learnExpected makes the packs known that are expected and are this store's.
func (s *Store) learnExpected(ctx context.Context) error {
	e := &s.expected
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "read", "indexes of packs")
	}
	var unknown []Digest
	e.mu.Lock()
	known := s.index.names()
	for d := range e.packs {
		if _, ok := known[d]; ok {
			delete(e.packs, d)
		} else {
			unknown = append(unknown, d)
		}
	}
	e.mu.Unlock()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.opts.Parallel)
	for _, d := range unknown {
		group.Go(func() error {
			size, err := s.opts.Origin.Size(ctx, packKey(d))
			if err == nil {
				err = s.learn(ctx, d, size)
			}
			if fault.Is(err, fault.NotFound) { // it is the base's, or lost
				err = nil
			}
			if err == nil {
				e.mu.Lock()
				delete(e.packs, d)
				e.mu.Unlock()
			}
			return fault.Wrap(err, "find pack", d.Short())
		})
	}
	return group.Wait()
}

// relearn looks again at the packs whose index could not be read. It is the last
// resort before a chunk counts as lost: the answers may have been wrong, not the packs.
func (s *Store) relearn(ctx context.Context) error {
	if len(s.index.unreadables()) == 0 {
		return nil
	}
	select {
	case s.expected.turn <- struct{}{}:
		defer func() { <-s.expected.turn }()
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "read", "indexes of packs")
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.opts.Parallel)
	for _, d := range s.index.unreadables() {
		group.Go(func() error {
			size, err := s.opts.Origin.Size(ctx, packKey(d))
			if err == nil {
				err = s.learn(ctx, d, size)
			}
			if fault.Is(err, fault.NotFound) {
				err = nil
			}
			return fault.Wrap(err, "find pack", d.Short())
		})
	}
	return group.Wait()
}
