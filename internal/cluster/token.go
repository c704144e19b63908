package cluster

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// Token lets a machine join. Whoever has it can join until it is used or expires.
type Token struct {
	Addresses []string    // of the control node, host:port; 1 to 8
	Authority Fingerprint // of the cluster's authority
	ID        [8]byte     // which token of the control node's it is; no secret
	Secret    [32]byte
}

// Layout of a token: docs/format/peer.md.
const (
	tokenPrefix       = "brisk1_"
	maxTokenAddresses = 8
	maxAddress        = 255 // bytes
	tokenFixed        = len(Fingerprint{}) + len(Token{}.ID) + len(Token{}.Secret) + 1
	tokenSum          = 4
)

// String writes the token as people copy it.
func (t Token) String() string {
	var b bytes.Buffer
	b.Write(t.Authority[:])
	b.Write(t.ID[:])
	b.Write(t.Secret[:])
	b.WriteByte(byte(len(t.Addresses)))
	for _, a := range t.Addresses {
		b.WriteByte(byte(len(a)))
		b.WriteString(a)
	}
	sum := sha256.Sum256(b.Bytes())
	b.Write(sum[:tokenSum])
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b.Bytes())
}

// ParseToken reads what String writes.
func ParseToken(s string) (t Token, err error) {
	wrong := func(why string) (Token, error) {
		return Token{}, fault.New(fault.Invalid, "that is no token: %s", why).
			WithHint("Copy the whole line that `brisk node token` printed.")
	}
	text, is := strings.CutPrefix(strings.TrimSpace(s), tokenPrefix)
	if !is {
		return wrong("it does not begin with " + tokenPrefix)
	}
	if len(text) > 4096 {
		return wrong("it is too long")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < tokenFixed+tokenSum {
		return wrong("a part of it is missing")
	}
	b, given := b[:len(b)-tokenSum], b[len(b)-tokenSum:]
	if sum := sha256.Sum256(b); !bytes.Equal(sum[:tokenSum], given) {
		return wrong("its checksum does not match")
	}
	b = b[copy(t.Authority[:], b):]
	b = b[copy(t.ID[:], b):]
	b = b[copy(t.Secret[:], b):]
	n := int(b[0])
	b = b[1:]
	if n < 1 || n > maxTokenAddresses {
		return wrong("it names no address")
	}
	for range n {
		if len(b) < 1 || len(b) < 1+int(b[0]) {
			return wrong("an address is cut off")
		}
		a := string(b[1 : 1+int(b[0])])
		if !validAddress(a) {
			return wrong("an address is none")
		}
		t.Addresses = append(t.Addresses, a)
		b = b[1+len(a):]
	}
	if len(b) > 0 {
		return wrong("something follows it")
	}
	return t, nil
}

// newToken makes a token's ID and secret.
func newToken(authority Fingerprint, addresses []string) Token {
	t := Token{Authority: authority, Addresses: addresses}
	_, _ = rand.Read(t.ID[:]) // never fails
	_, _ = rand.Read(t.Secret[:])
	return t
}

// hash is what the control node keeps of a token's secret. The secret has 256
// random bits, so that the hash needs neither salt nor slowness.
func (t Token) hash() Fingerprint { return sha256.Sum256(t.Secret[:]) }

func (t Token) id() string { return hex.EncodeToString(t.ID[:]) }
