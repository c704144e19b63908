package store

import (
	"context"

	"brisk.dev/brisk/internal/fault"
)

// WriteHot stores chunks once more, in this order, in packs of their own, to be
// read by Stream: here the order of packs and frames is the order of use. It
// reads at the lowest priority and returns when the packs are durable. They are
// ordinary packs: somebody has to refer to them, and the caller needs a hold until
// that is the case (Hold). Chunks that cannot be read are an error.
func (s *Store) WriteHot(ctx context.Context, chunks []Chunk) (packs []HotPack, err error) {
	made, err := s.writePacks(ctx, chunks, func(ctx context.Context, c Chunk, dst []byte) error {
		_, err := s.ReadChunk(ctx, c, dst)
		return err
	})
	for _, p := range made {
		packs = append(packs, HotPack{Pack: p.digest, Epoch: p.how.epoch, Frames: p.index.frames()})
	}
	return packs, fault.Wrap(err, "write", "hot pack")
}

// writePacks stores chunks, which it reads with read, in packs of their own, and makes these durable.
func (s *Store) writePacks(ctx context.Context, chunks []Chunk, read func(ctx context.Context, c Chunk, dst []byte) error) ([]sealedPack, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errClosed()) })()
	h := s.hold() // it may be an older one that the caller has, too
	defer h.Release()
	p, err := s.newPipeline(ctx, func(err error) { cancel(err) })
	if err != nil {
		return nil, err
	}
	defer p.remove()
	err = s.feed(ctx, p, chunks, read)
	p.finish()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return nil, err
	}
	for i := range p.packs {
		if err := s.publishPack(ctx, h, &p.packs[i]); err != nil {
			return nil, err
		}
	}
	return p.packs, nil
}

// feed reads chunks, each once, and gives them to the pipeline.
func (s *Store) feed(ctx context.Context, p *pipeline, chunks []Chunk, read func(ctx context.Context, c Chunk, dst []byte) error) error {
	seen := map[Digest]struct{}{}
	buf := make([]byte, ChunkSize)
	for _, c := range chunks {
		if _, twice := seen[c.Digest]; twice || c.Digest.IsZero() {
			continue
		}
		seen[c.Digest] = struct{}{}
		if err := s.demand.calm(ctx); err != nil {
			return err
		}
		if err := read(ctx, c, buf[:min(c.Size, ChunkSize)]); err != nil {
			return err
		}
		if err := p.add(ctx, c.Digest, buf[:c.Size]); err != nil {
			return err
		}
	}
	return nil
}

// frames gives the index as whoever has no pack needs it.
func (x packIndex) frames() []Frame {
	l := make([]Frame, 0, x.len())
	for _, e := range x.all() {
		l = append(l, Frame{Chunk: Chunk{e.digest, e.size}, Offset: e.offset, Stored: e.stored, Raw: e.raw})
	}
	return l
}
