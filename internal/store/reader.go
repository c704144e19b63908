package store

import "context"

// Reader reads the chunks of one image. Whoever makes one has a manifest of the
// workspace that was authenticated, and that is the permission to read these
// chunks from the cache, which holds what all workspaces read. It has nothing to close.
type Reader struct {
	s *Store
}

// Reader gives a reader for an image of these chunks, which lie in these packs, of
// the store or of its base. It does no I/O: indexes of packs that are not known
// are read when a chunk is found neither in the cache nor with a peer. chunks
// may not be changed later; other machines may get them, from the cache.
func (s *Store) Reader(packs []Digest, chunks []Chunk) *Reader {
	for _, in := range s.lineage() {
		in.expect(packs)
	}
	s.offer(chunks)
	return &Reader{s}
}

// ReadChunk does what Store.ReadChunk does, for a chunk of the image only. What the
// cache has is read without the origin.
func (r *Reader) ReadChunk(ctx context.Context, c Chunk, dst []byte) (Tier, error) {
	return r.s.readChunk(ctx, c, dst)
}

// ReadRun does what Cache.ReadRun does, for chunks of the image.
func (r *Reader) ReadRun(chunks []Chunk, dst []byte, off int64) bool {
	return r.s.readRun(chunks, dst, off)
}
