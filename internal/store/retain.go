package store

import "context"

// Freed is what Retain deleted. Bytes are as they were stored.
type Freed struct {
	Packs, Blobs int
	Bytes        int64
}

// Retain is Collect for roots that are asked for one by one, blobs by the names that they
// have in the origin (BlobName).
func (s *Store) Retain(ctx context.Context, keepPacks, keepBlobs func(Digest) bool) (Freed, error) {
	c, err := s.collect(ctx, CollectOptions{}, func(context.Context) (func(string) bool, error) {
		return func(key string) bool {
			d, ok := contentDigest(key)
			return !ok || isPack(key) && keepPacks(d) || !isPack(key) && keepBlobs(d)
		}, nil
	})
	return Freed{c.Packs, c.Blobs, c.Bytes}, err
}
