package store

import (
	"bytes"
	"context"
	"maps"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
)

// filePutter is an Origin that can take over a local file, and replace a damaged object.
type filePutter interface {
	PutFile(ctx context.Context, key, path string, replace bool) error
}

// publishing bounds the packs of a batch that are put at once.
const publishing = 4

// Commit makes the batch's chunks durable and visible. After an error the batch
// is over; packs that had been published by then stay, until Collect finds that nobody refers
// to them, so that a second attempt need not write them again. No Add or Use may
// be in progress.
func (b *Batch) Commit(ctx context.Context) (Written, error) {
	if !b.end() {
		return Written{}, fault.New(fault.Invalid, "the batch has ended")
	}
	defer b.hold.Release()
	defer b.cancel()
	stop := context.AfterFunc(ctx, b.cancel)
	defer stop()

	w := b.written
	packs := b.relied
	// Marked once more, so that a hold that began after the chunks were added protects them, too.
	// (Of one process only: see Batch.Hold.)
	for p := range packs {
		for _, in := range b.s.lineage() {
			in.index.known(p, in.holds.now)
		}
	}
	if b.pipeline != nil {
		b.pipeline.finish()
		defer b.pipeline.remove()
	}
	if err := b.failure(); err != nil {
		return Written{}, fault.Wrap(err, "write", "packs")
	}
	if b.pipeline != nil {
		group, ctx := errgroup.WithContext(b.ctx)
		group.SetLimit(publishing)
		for i := range b.pipeline.packs {
			p := &b.pipeline.packs[i]
			w.StoredBytes += p.size
			group.Go(func() error { return b.s.publishPack(ctx, b.hold, p) })
		}
		if err := group.Wait(); err != nil {
			return Written{}, err
		}
		for _, p := range b.pipeline.packs {
			packs[p.digest] = struct{}{}
		}
	}
	w.Packs = slices.SortedFunc(maps.Keys(packs), func(x, y Digest) int { return bytes.Compare(x[:], y[:]) })
	return w, nil
}

// publishPack puts a pack into the origin and then into the index, under a hold. If a
// pack of that name is being deleted it gets another.
func (s *Store) publishPack(ctx context.Context, h *Hold, p *sealedPack) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	if h.tenure != nil {
		if err := h.tenure.await(ctx); err != nil {
			return err
		}
		ok, err := h.tenure.lease.rely(ctx, packKey(p.digest))
		if err == nil && !ok {
			err = p.resalt()
		}
		if err != nil {
			return fault.Wrap(err, "store pack", p.digest.Short())
		}
	}
	s.publish.RLock()
	defer s.publish.RUnlock()
	damaged := s.index.isBad(p.digest) || s.index.isOther(p.digest, p.index)
	if !damaged && s.index.known(p.digest, s.holds.now) {
		return nil // another batch with the same chunks was faster
	}
	if err := s.putFile(ctx, packKey(p.digest), p.path, damaged); err != nil {
		return fault.Wrap(err, "store pack", p.digest.Short())
	}
	in := newPack(p.digest, p.size, p.index, p.how)
	in.touched.Store(s.holds.now())
	s.index.add(in)
	if err := s.logged.addPack(s.index, in, p.index); err != nil {
		s.logUnkept(err)
	}
	return nil
}

func (s *Store) putFile(ctx context.Context, key, path string, replace bool) error {
	if o, ok := s.opts.Origin.(filePutter); ok {
		return o.PutFile(ctx, key, path, replace)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if replace {
		if err := s.opts.Origin.Delete(ctx, key); err != nil {
			return err
		}
	}
	return s.opts.Origin.Put(ctx, key, f)
}
