package store

import (
	"context"

	"brisk.dev/brisk/internal/fault"
)

// PackUse is what of a pack is needed.
type PackUse struct {
	Size   int64   // of the pack
	Live   int64   // of the frames of chunks that are needed
	Chunks []Chunk // these, in their order
}

// PackUse looks at a pack of the store itself, not of its base; false if it is not known here,
// or damaged.
func (s *Store) PackUse(d Digest, needed func(Digest) bool) (PackUse, bool) {
	if s.index.isBad(d) {
		return PackUse{}, false
	}
	size, ok := s.index.size(d)
	u := PackUse{Size: size}
	for _, at := range s.index.chunksOf(s, d) {
		if needed(at.digest) {
			u.Live += int64(at.stored)
			u.Chunks = append(u.Chunks, Chunk{at.digest, at.size})
		}
	}
	return u, ok
}

// Repack stores chunks once more, in new packs, and gives these: so that the packs that they
// are in can go, and with them what else is in there. It reads the origin, past the cache. The caller has a hold, and gives the
// packs to whatever names the old ones.
func (s *Store) Repack(ctx context.Context, chunks []Chunk) (packs []Digest, err error) {
	made, err := s.writePacks(ctx, chunks, func(ctx context.Context, c Chunk, dst []byte) error {
		_, err := s.readCopies(ctx, c, dst)
		return err
	})
	for _, p := range made {
		packs = append(packs, p.digest)
	}
	return packs, fault.Wrap(err, "repack", "chunks")
}
