package seal

import (
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"

	"github.com/zeebo/blake3"
)

// EpochLength is how long an epoch lasts: long enough that an image which is
// built again and again is stored twice only four times a year, short enough that
// a damaged chunk of a popular base does not reach into every image ever made.
const EpochLength = 91 * 24 * time.Hour

// EpochAt is the epoch of a time. Clocks need not agree: a chunk that is sealed in
// a wrong epoch is read as any other, and at worst stored twice.
func EpochAt(t time.Time) uint32 {
	return uint32(max(t.Unix(), 0) / int64(EpochLength/time.Second))
}

// ID names a secret without giving anything of it away.
type ID [8]byte

// String gives 16 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Keys seal and open what belongs to one workspace.
type Keys struct {
	workspace string
	id        ID

	content *prf // names of content
	frames  *prf // keys of frames
	objects *prf // keys of objects
	names   *prf // keys of the names of records
	nonces  *prf
}

// The contexts of the derivation. They are part of the format.
const (
	contextID      = "brisk.dev 2026-12-01 seal v1 key id"
	contextContent = "brisk.dev 2026-12-01 seal v1 content name"
	contextFrames  = "brisk.dev 2026-12-01 seal v1 frame key"
	contextObjects = "brisk.dev 2026-12-01 seal v1 object key"
	contextNames   = "brisk.dev 2026-12-01 seal v1 record name key"
	contextNonces  = "brisk.dev 2026-12-01 seal v1 nonce"
)

// newKeys derives a workspace's keys. The workspace is part of the derivation: a
// secret that somebody installs under two names makes two sets of keys.
func newKeys(workspace string, secret [32]byte) *Keys {
	material := append(append([]byte{}, secret[:]...), workspace...)
	derive := func(context string) *prf {
		var key [32]byte
		blake3.DeriveKey(context, material, key[:])
		return newPRF(key)
	}
	k := &Keys{
		workspace: workspace,
		content:   derive(contextContent),
		frames:    derive(contextFrames),
		objects:   derive(contextObjects),
		names:     derive(contextNames),
		nonces:    derive(contextNonces),
	}
	blake3.DeriveKey(contextID, material, k.id[:])
	return k
}

// Workspace is whose keys they are.
func (k *Keys) Workspace() string { return k.workspace }

// ID names the secret: equal for all machines that have it.
func (k *Keys) ID() ID { return k.id }

// Name is the name by which content is known outside: to who lacks the key it
// tells nothing, not even about content that they have.
func (k *Keys) Name(digest [32]byte) [32]byte { return k.content.sum(digest[:]) }

// prf is BLAKE3 with a key. Hashers are large, so they are used again.
type prf struct{ hashers sync.Pool }

func newPRF(key [32]byte) *prf {
	return &prf{sync.Pool{New: func() any {
		h, err := blake3.NewKeyed(key[:])
		if err != nil {
			panic(err) // the key has 32 bytes
		}
		return h
	}}}
}

// sum is the function of the parts, one after the other: callers make sure that
// where one ends does not matter, or is written down.
func (p *prf) sum(parts ...[]byte) (out [32]byte) {
	h := p.hashers.Get().(*blake3.Hasher)
	h.Reset()
	for _, b := range parts {
		h.Write(b)
	}
	h.Sum(out[:0])
	p.hashers.Put(h)
	return out
}

// length encodes where a part ends.
func length[T ~string | ~[]byte](s T) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(len(s)))
}
