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

// read reads a layer, puts its files' content into a batch, calls fn with its
// entries, and checks its digests.
func (l layer) read(ctx context.Context, batch *store.Batch, meter *meter, fn func(*image.LayerEntry) error) error {
	stored, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer stored.Close()
	// The stored bytes are hashed and decompressed in a goroutine of their own,
	// the plain ones where they are read.
	hashStored := sha256.New()
	hashed := io.TeeReader(meter.reader(stored), hashStored)
	stream, compression, err := plain(hashed)
	if err != nil {
		return l.suspect(ctx, err, hashed, hashStored)
	}
	defer stream.Close()
	ahead := readAhead(stream)
	defer ahead.Close() // before stream's
	content, hashPlain := io.Reader(ahead), sha256.New()
	if compression != "" {
		content = io.TeeReader(ahead, hashPlain)
	} else {
		hashPlain = hashStored // they are the same bytes
	}

	_, err = image.ReadTar(ctx, content, batch, image.LayerOptions{Whiteouts: image.OCI}, fn)
	if err == nil {
		err = drain(content)
	}
	ahead.Close() // hashStored belongs to this goroutine again
	if err != nil {
		return l.suspect(ctx, err, hashed, hashStored)
	}
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
// hashed is what is left of the stored bytes.
func (l layer) suspect(ctx context.Context, err error, hashed io.Reader, hash hash.Hash) error {
	class := fault.ClassOf(err)
	if class != fault.Invalid && class != fault.Corrupt || ctx.Err() != nil {
		return err
	}
	if l.digest == (v1.Hash{}) {
		return l.suspectPlain(ctx, err)
	}
	if _, copyErr := io.Copy(io.Discard, hashed); copyErr != nil {
		return err
	}
	if got := sum(hash); got != l.digest {
		return mismatch("content", l.digest, got)
	}
	return err
}

// suspectPlain is suspect for a layer of which only the decompressed digest is
// known: it is read once more.
func (l layer) suspectPlain(ctx context.Context, err error) error {
	stored, openErr := l.open(ctx)
	if openErr != nil {
		return err
	}
	defer stored.Close()
	stream, _, plainErr := plain(newMeter(ctx, 0, nil).reader(stored))
	if plainErr != nil {
		return err
	}
	defer stream.Close()
	hash := sha256.New()
	if _, copyErr := io.Copy(hash, io.LimitReader(stream, image.DefaultMaxBytes)); copyErr != nil {
		return err
	}
	if got := sum(hash); got != l.diffID {
		return mismatch("content", l.diffID, got)
	}
	return err
}

func sum(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// maxTrailer bounds what may follow the end of a tar: writers fill up their last
// record, of 10 KiB as a rule and of a few MiB at most.
const maxTrailer = 16 << 20

// drain reads what follows the end of a tar, for the digests to be complete.
func drain(r io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r, maxTrailer))
	if err == nil && n == maxTrailer {
		err = fault.New(fault.Invalid, "more than %d MiB follow the end of the tar", maxTrailer>>20)
	}
	return err
}
