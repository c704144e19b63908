package store

import (
	"bytes"
	"context"
	"fmt"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// PutBlob stores data, of at least one byte, as an object of its own, durably,
// and gives its digest. One that is there already is read back, and written
// again if it is damaged. Only a hold keeps it from Collect until something
// refers to it.
func (s *Store) PutBlob(ctx context.Context, data []byte) (Digest, error) {
	if len(data) == 0 {
		return Digest{}, fault.New(fault.Invalid, "an empty blob")
	}
	d := Sum(data)
	if err := s.putBlob(ctx, d, data); err != nil {
		return Digest{}, fault.Wrap(err, "store blob", d.Short())
	}
	return d, nil
}

func (s *Store) putBlob(ctx context.Context, d Digest, data []byte) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	h := s.hold()
	defer h.Release()
	if err := h.tenure.await(ctx); err != nil {
		return err
	}
	s.publish.RLock()
	defer s.publish.RUnlock()
	for _, key := range s.blobKeys(d) {
		if h.tenure != nil {
			ok, err := h.tenure.lease.rely(ctx, key)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
		}
		if err := s.putBlobAt(ctx, key, d, data); err != nil {
			return err
		}
		s.holds.touchBlob(s.BlobName(d))
		if s.ledger != nil {
			s.placed.Store(d, key)
		}
		return nil
	}
	return fault.New(fault.Unavailable, "this content was deleted %d times in the last day", blobGenerations).
		WithHint("Collecting garbage less often helps, and so does waiting.")
}

func (s *Store) putBlobAt(ctx context.Context, key string, d Digest, data []byte) error {
	switch _, err := s.getBlobAt(ctx, key, d, int64(len(data))); {
	case fault.Is(err, fault.Corrupt):
		if err := s.opts.Origin.Delete(ctx, key); err != nil {
			return err
		}
	case err != nil && !fault.Is(err, fault.NotFound):
		return err
	}
	// Also if it is there: Put returns when it is durable, and whoever put it
	// may have died before.
	frame := encoder().EncodeAll(data, nil)
	if keys := s.sealing(); keys != nil {
		frame = keys.SealObject(blobKind, d.String(), frame)
	}
	return s.opts.Origin.Put(ctx, key, bytes.NewReader(frame))
}

// blobGenerations is how many places a blob has. What is being deleted cannot be
// written again under the same key, and a blob has no salt as a pack has.
const blobGenerations = 4

// blobKeys are the places where a blob may be, in the order in which they are tried.
func (s *Store) blobKeys(d Digest) []string {
	key := blobKey(s.BlobName(d))
	keys := []string{key}
	if s.ledger != nil {
		for g := 1; g < blobGenerations; g++ {
			keys = append(keys, fmt.Sprintf("%s.%d", key, g))
		}
	}
	return keys
}

// blobKind is what blobs are sealed as; their names there are digests.
const blobKind = "blob"

// BlobName is the name that a blob has in the origin: its digest, keyed if the store is sealed.
func (s *Store) BlobName(d Digest) Digest {
	if keys := s.sealing(); keys != nil {
		return keys.Name(d)
	}
	return d
}

// GetBlob reads a blob of at most max bytes and verifies it.
func (s *Store) GetBlob(ctx context.Context, d Digest, max int64) ([]byte, error) {
	var first error
	for _, key := range s.blobKeys(d) {
		var data []byte
		err := s.secondLook(ctx, func() (err error) {
			data, err = s.getBlobAt(ctx, key, d, max)
			return err
		})
		if err == nil || !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Corrupt) {
			return data, err
		}
		if first == nil || fault.Is(err, fault.Corrupt) {
			first = err // damage says more than absence
		}
	}
	return nil, first
}

func (s *Store) getBlobAt(ctx context.Context, key string, d Digest, max int64) ([]byte, error) {
	damaged := func(err error) error {
		return &fault.Error{Class: fault.Corrupt, Op: "read blob", Object: d.String(), Hint: hintImport, Err: err}
	}
	frame, _, err := s.opts.Origin.Get(ctx, key, max+max/64+1024+seal.ObjectOverhead) // zstd never needs more
	if fault.Is(err, fault.Corrupt) {
		return nil, damaged(err)
	}
	if err != nil {
		return nil, fault.Wrap(err, "read blob", d.Short())
	}
	if keys := s.sealing(); keys != nil {
		if frame, err = keys.OpenObject(blobKind, d.String(), frame); err != nil {
			return nil, damaged(err)
		}
	}
	data, err := decodeBlob(frame, max)
	if err != nil {
		return nil, damaged(err)
	}
	if Sum(data) != d {
		return nil, damaged(fmt.Errorf("its content does not match its digest"))
	}
	return data, nil
}
