package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

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

// The tiers, nearest first.
const (
	FromCache Tier = iota
	FromPeer
	FromOrigin
)

// Origin keeps objects under slash-separated keys (CheckKey): a local directory
// (DirOrigin) or a bucket (package s3). Content, which is named by its digest, is
// put once and never changes; small records are exchanged with Swap. A key is
// used for one of the two.
//
// All methods are safe for concurrent use, respect ctx, and return errors of package
// fault: Invalid for a key that is none, NotFound for an object that is not there,
// Corrupt for one that is shorter or longer than it may be, DiskFull, Unavailable.
// storetest.TestOrigin is the suite that each implementation passes.
type Origin interface {
	// Put stores all of r under key: all or nothing, and durable when it
	// returns. An object that exists already stays as it is, and is no error.
	Put(ctx context.Context, key string, r io.Reader) error
	// Swap stores data, whole and durable, if the object's version is old; ""
	// means that there must be no object. If it is not so the error is fault.Exists, and nothing
	// has changed; after another error, but for ErrRefused, it may have. Of several at once, in whatever
	// processes, one wins.
	Swap(ctx context.Context, key string, old Version, data []byte) (Version, error)

	// ReadAt fills p from offset off, or fails; a short object is io.ErrUnexpectedEOF, of class Corrupt.
	ReadAt(ctx context.Context, key string, p []byte, off int64) error
	// Open streams an object from offset off to its end; ctx bounds the reading, too. The stream
	// ends with io.EOF only if all was delivered. An offset at or past the end, but
	// for 0, is io.ErrUnexpectedEOF, of class Corrupt.
	Open(ctx context.Context, key string, off int64) (io.ReadCloser, error)
	// Get reads a whole object of at most max bytes, with the version that it has; a longer
	// one is fault.Corrupt.
	Get(ctx context.Context, key string, max int64) ([]byte, Version, error)
	// Size gives an object's length in bytes.
	Size(ctx context.Context, key string) (int64, error)
	// List calls fn for each object whose key has the prefix, in no particular
	// order, until fn fails. One that comes or goes meanwhile may be seen or not.
	List(ctx context.Context, prefix string, fn func(Object) error) error

	// Delete removes an object; one that is not there is no error.
	Delete(ctx context.Context, key string) error
}

// Object is what a listing says of an object.
type Object struct {
	Key      string
	Size     int64     // in bytes
	Modified time.Time // when it was put, by the clock of the origin, which need not be this machine's
}

// ErrDenied is in the chain of an Origin's error, of class fault.Machine, if the
// origin does not accept this machine's credentials, or its clock. It says nothing
// about what the origin has.
var ErrDenied = errors.New("this machine has no access")

// Away reports an error that says nothing about what an origin has, but that it does
// not answer, or not us. What is local is to be used then.
func Away(err error) bool {
	return fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Timeout) || errors.Is(err, ErrDenied)
}

// ErrRefused is in the chain of an Origin's error if the origin has certainly done
// nothing: even what must not be done twice may be tried again.
var ErrRefused = errors.New("nothing was changed")

// Version is a state of an object that Swap exchanges, for comparison only. Equal
// content may have equal versions.
type Version string

// Cache is the machine's own tier: chunks in plain content, each once. The slab
// implements it. Safe for concurrent use.
type Cache interface {
	// Read fills dst (len = c.Size) and reports whether the chunk is here. A
	// chunk whose bytes do not match its digest is dropped and counts as absent.
	Read(c Chunk, dst []byte) (bool, error)
	// ReadRun fills dst from the byte at off of a run of chunks, each of which begins at
	// the next multiple of BlockSize, with zeros before it. It does so only if all that it
	// needs is here, and need not be looked at as a whole: since opening, the
	// chunks' bytes matched their digests or were written. It reports whether it has;
	// if not, which is no miss, dst is undefined, and Read may still.
	ReadRun(chunks []Chunk, dst []byte, off int64) bool
	// Write keeps a verified chunk. Losing it in a crash is allowed; giving back wrong bytes never is.
	Write(c Chunk, data []byte) error
	Has(d Digest) bool
	// Pin keeps chunks from eviction on behalf of an owner (a mounted image) until Unpin.
	Pin(owner string, chunks []Chunk)
	Unpin(owner string)
	Stats() CacheStats
	Close() error
}

// CacheStats are counts since opening, but for those in the first group.
type CacheStats struct {
	Chunks int64 // that can be read
	Bytes  int64 // of all places, in whole blocks
	Limit  int64 // of Bytes; 0: none
	Pinned int64 // bytes of Bytes that may not be evicted
	Disk   int64 // what the cache takes of the disk, in bytes

	Hits, Misses, Writes  int64 // chunks
	Drops                 int64 // chunks found damaged
	Evicted, EvictedBytes int64 // chunks, and their bytes
	Refused               int64 // chunks that were not kept, because there was no room and nothing to evict

	// Chunks that a scrub has read from the disk, their bytes, and those that were damaged.
	Scrubbed, ScrubbedBytes, ScrubDamaged int64
}

// Peers are the other machines that may have a chunk. Package peer implements it.
// Names are keyed (seal.Keys.Name) and answers sealed, so that it need not be trusted,
// nor those whom it asks.
type Peers interface {
	// Fetch asks other machines for the chunk of that keyed name. accept is called
	// with each answer, one at a time, until it returns nil; an answer that it refuses
	// convicts the machine that gave it. fault.NotFound: nobody has it. Fetch is
	// bounded in time by itself.
	Fetch(ctx context.Context, workspace string, name Digest, accept func(answer []byte) error) error
	// Announce says that this machine has the chunk now. It never blocks.
	Announce(workspace string, name Digest)
}
