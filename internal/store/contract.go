package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/fault"
)

// Sizes that all formats share.
const (
	ChunkSize = 128 << 10 // bytes in a chunk, but for the last of a file
	BlockSize = 4 << 10   // bytes in a block: chunks begin at multiples of it
)

// Digest names content: the BLAKE3-256 of its uncompressed bytes.
type Digest [32]byte

// Sum computes the digest of b.
func Sum(b []byte) Digest { return blake3.Sum256(b) }

// ParseDigest reads the 64 hexadecimal digits that String writes.
func ParseDigest(s string) (d Digest, err error) {
	if len(s) != 64 {
		return d, fault.New(fault.Invalid, "%q is not a digest: want 64 hexadecimal digits", s)
	}
	if _, err := hex.Decode(d[:], []byte(s)); err != nil {
		return d, fault.New(fault.Invalid, "%q is not a digest: want 64 hexadecimal digits", s)
	}
	return d, nil
}

// String gives 64 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Short gives the first 12 digits, for people.
func (d Digest) Short() string { return d.String()[:12] }

// IsZero reports the zero digest, which names nothing (a hole, where chunks are listed).
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText and UnmarshalText make a digest a string in JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Digest) UnmarshalText(b []byte) error {
	v, err := ParseDigest(string(b))
	if err == nil {
		*d = v
	}
	return err
}

// Chunk is a reference to one piece of a file: its digest and its length in
// bytes, 1 to ChunkSize. A zero Digest means a hole of that length.
type Chunk struct {
	Digest Digest
	Size   uint32
}

func (c Chunk) String() string { return fmt.Sprintf("%s+%d", c.Digest.Short(), c.Size) }

// Tier says where a chunk's bytes came from.
type Tier uint8

// The tiers, nearest first. Peers come between the two when there are several nodes.
const (
	FromCache Tier = iota
	FromOrigin
)

// Origin keeps immutable objects under slash-separated keys: a directory now, an
// S3 bucket later. All methods are safe for concurrent use, respect ctx, and
// return errors of package fault: NotFound for a key that is not there,
// DiskFull, Unavailable. originTest (storetest) is the suite that each passes.
type Origin interface {
	// Put stores all of r under key: all or nothing, and durable when it
	// returns. An object that exists already stays as it is, and is no error.
	Put(ctx context.Context, key string, r io.Reader) error
	// ReadAt fills p from offset off, or fails; a short object is io.ErrUnexpectedEOF, of class Corrupt.
	ReadAt(ctx context.Context, key string, p []byte, off int64) error
	// Size gives an object's length in bytes.
	Size(ctx context.Context, key string) (int64, error)
	// List calls fn for each key with the prefix, in no particular order, until fn fails.
	List(ctx context.Context, prefix string, fn func(key string, size int64) error) error
	// Delete removes an object; one that is not there is no error.
	Delete(ctx context.Context, key string) error
}

// Cache is the machine's own tier: chunks in plain content, each once. The slab
// implements it. Safe for concurrent use.
type Cache interface {
	// Read fills dst (len = c.Size) and reports whether the chunk is here. A
	// chunk whose bytes do not match its digest is dropped and counts as absent.
	Read(c Chunk, dst []byte) (bool, error)
	// Write keeps a verified chunk. Losing it in a crash is allowed; giving back wrong bytes never is.
	Write(c Chunk, data []byte) error
	Has(d Digest) bool
	// Pin keeps chunks from eviction on behalf of an owner (a mounted image) until Unpin.
	Pin(owner string, chunks []Chunk)
	Unpin(owner string)
	Stats() CacheStats
	Close() error
}

// CacheStats are counts since opening, but for Chunks, Bytes (on disk now) and Limit.
type CacheStats struct {
	Chunks, Bytes, Limit        int64
	Hits, Misses, Drops, Writes int64
}
