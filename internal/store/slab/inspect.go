package slab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// seat is a chunk as it was when places were listed: it may have gone since.
type seat struct {
	id    uint32
	place place
}

// seats lists the chunks that the disk has, from a block on, in the order of
// their places.
func (s *Slab) seats(from uint32) (l []seat, bytes int64) {
	s.each(func(id uint32, e *entry) {
		if e.place.block >= from && e.here() && e.state&stateSynced != 0 {
			l = append(l, seat{id, e.place})
			bytes += int64(e.place.size)
		}
	})
	slices.SortFunc(l, func(x, y seat) int { return cmp.Compare(x.place.block, y.place.block) })
	return l, bytes
}

var errPadding = errors.New("the rest of its last block is not zeros")

// inspect reads a chunk and its padding as it is on the disk, and remembers what
// it finds. buf is alignedBuffer(store.ChunkSize). A chunk that has gone is no
// damage. The error is that the slab is closed.
func (s *Slab) inspect(at seat, buf []byte) (c store.Chunk, damage error, err error) {
	s.mu.RLock()
	e := s.table.at(at.id)
	if s.closed || e.place != at.place || !e.here() {
		closed := s.closed
		s.mu.RUnlock()
		if closed {
			return c, nil, errClosed()
		}
		return c, nil, nil
	}
	c = store.Chunk{Digest: e.digest, Size: e.place.size}
	grace := &s.grace[s.epoch]
	grace.RLock()
	s.mu.RUnlock()
	buf = buf[:int(at.place.extent().count)*store.BlockSize]
	_, damage = s.data.readDisk(buf, at.place.offset())
	grace.RUnlock()
	switch {
	case errors.Is(damage, os.ErrClosed):
		return c, nil, errClosed()
	case damage != nil:
	case store.Sum(buf[:c.Size]) != c.Digest:
		damage = errMismatch
	case !bytes.Equal(buf[c.Size:], zeros[:len(buf)-int(c.Size)]):
		damage = errPadding
	}
	if damage == nil {
		s.checked(c.Digest, at.place)
	}
	return c, damage, nil
}

// inspectAll inspects in parallel, as fast as it goes, until all are done, ctx
// ends, or the slab is closed. each is told of every one, in this goroutine.
func (s *Slab) inspectAll(ctx context.Context, l []seat, each func(at seat, c store.Chunk, damage error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		at          seat
		c           store.Chunk
		damage, err error
	}
	results := make(chan result)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(verifiers(), len(l)) {
		wg.Go(func() {
			buf := alignedBuffer(store.ChunkSize)
			for i := next.Add(1) - 1; i < int64(len(l)); i = next.Add(1) - 1 {
				r := result{at: l[i]}
				r.c, r.damage, r.err = s.inspect(l[i], buf)
				select {
				case results <- r:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	defer wg.Wait()
	defer cancel()
	for range l {
		select {
		case r := <-results:
			if r.err != nil {
				return r.err
			}
			each(r.at, r.c, r.damage)
		case <-ctx.Done():
			return fault.Wrap(ctx.Err(), "verify", s.opts.Dir)
		}
	}
	return nil
}
