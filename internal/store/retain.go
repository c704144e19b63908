package store

import (
	"context"

	"brisk.dev/brisk/internal/fault"
)

// Freed is what Retain deleted. Bytes are as they were stored.
type Freed struct {
	Packs, Blobs int
	Bytes        int64
}

// Retain deletes every pack and blob that is not to be kept, unless a hold
// protects it. Chunks that are in no pack any more are not stored any more (Has);
// the cache may still have them.
//
// Blobs go by the names that they have in the origin (BlobName).
//
// Both functions are called only after it is settled which holds count. They
// must know every reference that is durable at the time of their first call; so
// collect the references then (sync.OnceValue does it), not before: an import
// may have finished and released its hold in between.
//
// It may be interrupted at any step: what is deleted is consistently gone, and
// another call deletes the rest.
func (s *Store) Retain(ctx context.Context, keepPacks, keepBlobs func(Digest) bool) (Freed, error) {
	var freed Freed
	if err := s.await(ctx); err != nil {
		return freed, err
	}
	s.retain.Lock()
	defer s.retain.Unlock()
	since := s.holds.since()
	err := s.deleteUnkept(ctx, "packs/", keepPacks, func(d Digest) bool { return s.index.removeIf(d, since) },
		func(size int64) { freed.Packs++; freed.Bytes += size })
	if err != nil {
		return freed, err
	}
	err = s.deleteUnkept(ctx, "blobs/", keepBlobs, func(d Digest) bool { return s.holds.forgetBlob(d, since) },
		func(size int64) { freed.Blobs++; freed.Bytes += size })
	return freed, err
}

// deleteUnkept deletes the objects with a prefix that are not to be kept and
// that forget gives up.
func (s *Store) deleteUnkept(ctx context.Context, prefix string, keep, forget func(Digest) bool, freed func(int64)) error {
	sizes := map[Digest]int64{}
	err := s.opts.Origin.List(ctx, prefix, func(o Object) error {
		if d, ok := keyDigest(prefix, o.Key); ok && !keep(d) {
			sizes[d] = o.Size
		}
		return nil
	})
	if err != nil {
		return fault.Wrap(err, "list", prefix)
	}
	for d, size := range sizes {
		deleted, err := s.deleteObject(ctx, objectKey(prefix, d), func() bool { return forget(d) })
		if err != nil {
			return err
		}
		if deleted {
			freed(size)
		}
	}
	return nil
}

// deleteObject deletes one object if forget, called while nothing is being
// published, agrees. First the index forgets, then the object goes: nobody can
// begin to rely on what is about to vanish, and after a crash in between the
// object is only unreferenced again.
func (s *Store) deleteObject(ctx context.Context, key string, forget func() bool) (bool, error) {
	s.publish.Lock()
	defer s.publish.Unlock()
	if !forget() {
		return false, nil
	}
	if err := s.opts.Origin.Delete(ctx, key); err != nil {
		return false, fault.Wrap(err, "delete", key)
	}
	return true, nil
}
