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
// again if it is damaged. Only a hold keeps it from Retain until something
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
	s.publish.RLock()
	defer s.publish.RUnlock()
	if err := s.ready(ctx); err != nil {
		return err
	}
	key := blobKey(s.BlobName(d))
	switch _, err := s.GetBlob(ctx, d, int64(len(data))); {
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
	if err := s.opts.Origin.Put(ctx, key, bytes.NewReader(frame)); err != nil {
		return err
	}
	s.holds.touchBlob(s.BlobName(d))
	return nil
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
	key := blobKey(s.BlobName(d))
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
