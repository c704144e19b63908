package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"

	"brisk.dev/brisk/internal/fault"
)

// The sealed form of a plaintext is nonce, ciphertext, tag.
const (
	nonceSize = 12
	tagSize   = 16

	// Overhead is how many bytes longer a sealed frame is than the frame.
	Overhead = nonceSize + tagSize
)

// synthetic seals plain, bound to also, onto dst: deterministically, with a nonce
// that is a MAC of all three. See the package's comment.
func (k *Keys) synthetic(dst []byte, key [32]byte, also, plain []byte) []byte {
	mac := k.nonces.sum(key[:], length(also), also, plain)
	dst = append(dst, mac[:nonceSize]...)
	return gcm(key).Seal(dst, mac[:nonceSize], plain, also)
}

// authentic opens what synthetic made, in place.
func authentic(key [32]byte, also, sealed []byte) ([]byte, error) {
	if len(sealed) < Overhead {
		return nil, fault.New(fault.Corrupt, "%d bytes are too short to be sealed", len(sealed))
	}
	plain, err := gcm(key).Open(sealed[nonceSize:nonceSize], sealed[:nonceSize], sealed[nonceSize:], also)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "it does not authenticate")
	}
	return plain, nil
}

func gcm(key [32]byte) cipher.AEAD {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	return aead
}

// SealFrame appends to dst the sealed form of frame, the stored form of the
// content with that digest. The same content in the same epoch and frame gives
// the same bytes. It must not overlap dst.
func (k *Keys) SealFrame(dst []byte, digest [32]byte, epoch uint32, frame []byte) []byte {
	return k.synthetic(dst, k.frameKey(digest, epoch), nil, frame)
}

// OpenFrame gives the frame that SealFrame sealed, in the memory of sealed, which
// is used up; fault.Corrupt if it is not what these keys made of content with that
// digest in that epoch.
func (k *Keys) OpenFrame(digest [32]byte, epoch uint32, sealed []byte) ([]byte, error) {
	frame, err := authentic(k.frameKey(digest, epoch), nil, sealed)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "it does not authenticate with the key of workspace %q (%s)", k.workspace, k.id)
	}
	return frame, nil
}

func (k *Keys) frameKey(digest [32]byte, epoch uint32) [32]byte {
	return k.frames.sum(binary.LittleEndian.AppendUint32(nil, epoch), digest[:])
}
