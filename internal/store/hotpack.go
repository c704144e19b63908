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
	err = s.feed(ctx, p, chunks)
	p.finish()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fault.Wrap(err, "write", "hot pack")
	}
	for i := range p.packs {
		made := &p.packs[i]
		if err := s.publishPack(ctx, h, made); err != nil {
			return nil, err
		}
		packs = append(packs, HotPack{Pack: made.digest, Epoch: made.how.epoch, Frames: made.index.frames()})
	}
	return packs, nil
}

// feed reads chunks, each once, and gives them to the pipeline.
func (s *Store) feed(ctx context.Context, p *pipeline, chunks []Chunk) error {
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
		if _, err := s.ReadChunk(ctx, c, buf[:min(c.Size, ChunkSize)]); err != nil {
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
