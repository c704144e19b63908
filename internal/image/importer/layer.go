package importer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// apply puts a layer on top of a tree and checks its digests.
func (l layer) apply(ctx context.Context, t *image.Tree, batch *store.Batch, meter *meter) error {
	stored, err := l.open()
	if err != nil {
		return err
	}
	defer stored.Close()
	// The stored bytes are hashed and decompressed in a goroutine of their own,
	// the plain ones where they are read.
	hashStored := sha256.New()
	hashed := io.TeeReader(meter.reader(stored), hashStored)
	stream, _, err := plain(hashed)
	if err != nil {
		return err
	}
	defer stream.Close()
	ahead := readAhead(stream)
	defer ahead.Close() // before stream's
	hashPlain := sha256.New()
	content := io.TeeReader(ahead, hashPlain)

	_, err = t.ApplyTar(ctx, content, batch, image.LayerOptions{Whiteouts: image.OCI})
	if err == nil {
		err = drain(content)
	}
	if err != nil {
		return l.suspect(ctx, err)
	}
	ahead.Close() // hashStored belongs to this goroutine again
	if _, err := io.Copy(io.Discard, hashed); err != nil {
		return err
	}
	if got := sum(hashStored); l.digest != (v1.Hash{}) && got != l.digest {
		return mismatch("content", l.digest, got)
	}
	if got := sum(hashPlain); got != l.diffID {
		return mismatch("decompressed content", l.diffID, got)
	}
	return nil
}

// suspect explains a layer that does not read. If its bytes are not those that the
// digest promised, that is the reason, and not what they happened to look like.
func (l layer) suspect(ctx context.Context, err error) error {
	class := fault.ClassOf(err)
	if class != fault.Invalid && class != fault.Corrupt || ctx.Err() != nil {
		return err
	}
	stored, openErr := l.open()
	if openErr != nil {
		return err
	}
	defer stored.Close()
	hash, want := sha256.New(), l.digest
	r := newMeter(ctx, 0, nil).reader(stored)
	if want == (v1.Hash{}) {
		want = l.diffID
		stream, _, plainErr := plain(r)
		if plainErr != nil {
			return err
		}
		defer stream.Close()
		r = io.LimitReader(stream, image.DefaultMaxBytes)
	}
	if _, copyErr := io.Copy(hash, r); copyErr != nil {
		return err
	}
	if got := sum(hash); got != want {
		return mismatch("content", want, got)
	}
	return err
}

func sum(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// maxTrailer bounds what may follow the end of a tar: writers fill up their last
// record, of 10 KiB as a rule and of a few MiB at most.
const maxTrailer = 64 << 20

// drain reads what follows the end of a tar, for the digests to be complete.
func drain(r io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r, maxTrailer))
	if err == nil && n == maxTrailer {
		err = fault.New(fault.Invalid, "more than %d MiB follow the end of the tar", maxTrailer>>20)
	}
	return err
}
