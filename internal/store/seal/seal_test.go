package seal

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/blake3"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
)

// fixed are keys of a secret that never changes: formats are pinned with them.
func fixed(workspace string) *Keys {
	var secret [32]byte
	for i := range secret {
		secret[i] = byte(i)
	}
	return newKeys(workspace, secret)
}

// TestFormat pins version 1: what it made, every later Brisk must open.
func TestFormat(t *testing.T) {
	k := fixed("default")
	digest := blake3.Sum256([]byte("content"))
	name := k.Name(digest)
	require.Equal(t, "79455f1db7c89f6e", k.ID().String())
	require.Equal(t, "accde79f2a5229af7a8858d81f08676672738d594031c8c30dfb2493d4dd78bb", hex.EncodeToString(name[:]))
	require.Equal(t, "fb4a9f01fe6b6e37b8c59a3110124ad251c81b399de06986402b15742e18d2804e", hex.EncodeToString(k.SealFrame(nil, digest, 7, []byte("frame"))))
	require.Equal(t, "4252534b5345414c010000000000000079455f1db7c89f6e291e59bfdf191e01b4a66c601ba9653a8cf0fb84d947974e299d6e4b9f489570", hex.EncodeToString(k.SealObject("kind", "name", []byte("data"))))
	require.Equal(t, "pr0r4hrq7u906n3nl1fjsvf2usd3t4v166cv2netkfrsulgcb84gh2h8r235o7ooc5rkdongfuf4neg51k67biend4lpn0ka", k.SealName("kind", "registry.example/team/web:v1"))
}

// TestOnlyAsWhatItIs opens everything as something else: with one bit changed, under
// another name, kind, digest, epoch, or with the keys of another workspace.
func TestOnlyAsWhatItIs(t *testing.T) {
	a, b := fixed("a"), fixed("b") // one secret, two workspaces
	digest, other := blake3.Sum256([]byte("a")), blake3.Sum256([]byte("b"))
	corrupt := func(_ any, err error) {
		t.Helper()
		require.True(t, fault.Is(err, fault.Corrupt), err)
	}
	frame := a.SealFrame([]byte("before"), digest, 1, []byte("frame"))
	require.Equal(t, "before", string(frame[:6]))
	frame = frame[6:]
	require.Len(t, frame, 5+Overhead)
	got, err := a.OpenFrame(digest, 1, bytes.Clone(frame))
	require.NoError(t, err)
	require.Equal(t, "frame", string(got))
	corrupt(b.OpenFrame(digest, 1, bytes.Clone(frame)))
	corrupt(a.OpenFrame(digest, 2, bytes.Clone(frame)))
	corrupt(a.OpenFrame(other, 1, bytes.Clone(frame)))
	for i := range frame {
		frame[i] ^= 1
		corrupt(a.OpenFrame(digest, 1, bytes.Clone(frame)))
		frame[i] ^= 1
		corrupt(a.OpenFrame(digest, 1, bytes.Clone(frame[:i])))
	}

	object := a.SealObject("kind", "name", []byte("data"))
	require.Len(t, object, 4+ObjectOverhead)
	data, err := a.OpenObject("kind", "name", bytes.Clone(object))
	require.NoError(t, err)
	require.Equal(t, "data", string(data))
	_, err = b.OpenObject("kind", "name", bytes.Clone(object))
	corrupt(nil, err)
	require.ErrorContains(t, err, "sealed with the key "+a.ID().String()+", and workspace \"b\" has the key "+b.ID().String())
	corrupt(a.OpenObject("kinds", "name", bytes.Clone(object)))
	corrupt(a.OpenObject("kind", "names", bytes.Clone(object)))
	corrupt(a.OpenObject("kin", "dname", bytes.Clone(object)))
	for i := range object {
		object[i] ^= 1
		corrupt(a.OpenObject("kind", "name", bytes.Clone(object)))
		object[i] ^= 1
		corrupt(a.OpenObject("kind", "name", bytes.Clone(object[:i])))
	}

	name := a.SealName("names", "web")
	plain, err := a.OpenName("names", name)
	require.NoError(t, err)
	require.Equal(t, "web", plain)
	corrupt(b.OpenName("names", name))
	corrupt(a.OpenName("manifests", name))
	for i := range name {
		c := byte('0')
		if name[i] == c {
			c = '1'
		}
		corrupt(a.OpenName("names", name[:i]+string(c)+name[i+1:]))
		corrupt(a.OpenName("names", name[:i]))
	}
	require.NotEqual(t, a.Name(digest), b.Name(digest))
	require.NotEqual(t, a.Name(digest), digest)
}

// TestTwoFramesOfOneContent is the reason for the nonce's being a MAC: two
// compressors make two frames of one content, under one key. With one nonce, the
// two ciphertexts would differ exactly where the plaintexts do.
func TestTwoFramesOfOneContent(t *testing.T) {
	k := fixed("default")
	digest := blake3.Sum256([]byte("content"))
	one, two := bytes.Repeat([]byte("frame 1 "), 16), bytes.Repeat([]byte("frame 2 "), 16)
	a, b := k.SealFrame(nil, digest, 1, one), k.SealFrame(nil, digest, 1, two)
	require.NotEqual(t, a[:nonceSize], b[:nonceSize])
	same := 0
	for i := range one {
		if a[nonceSize+i]^b[nonceSize+i] == one[i]^two[i] {
			same++
		}
	}
	require.Less(t, same, 16)
	require.Equal(t, a, k.SealFrame(nil, digest, 1, one), "and the same frame is sealed the same way: it is deduplicated")
	require.NotEqual(t, a[nonceSize:], k.SealFrame(nil, digest, 2, one)[nonceSize:], "but not in another epoch")
}

func TestRoundTrips(t *testing.T) {
	k := fixed("default")
	rapid.Check(t, func(r *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(r, "data")
		kind, name := rapid.StringN(0, 20, 20).Draw(r, "kind"), rapid.StringN(0, 255, 255).Draw(r, "name")
		epoch, digest := rapid.Uint32().Draw(r, "epoch"), blake3.Sum256(data)
		got, err := k.OpenFrame(digest, epoch, k.SealFrame(nil, digest, epoch, data))
		require.NoError(r, err)
		require.True(r, bytes.Equal(data, got))
		got, err = k.OpenObject(kind, name, k.SealObject(kind, name, data))
		require.NoError(r, err)
		require.True(r, bytes.Equal(data, got))
		sealed := k.SealName(kind, name)
		require.Empty(r, strings.Trim(sealed, "0123456789abcdefghijklmnopqrstuv"))
		opened, err := k.OpenName(kind, sealed)
		require.NoError(r, err)
		require.Equal(r, name, opened)
	})
}

func TestNamesHideTheirLength(t *testing.T) {
	k := fixed("default")
	require.Equal(t, len(k.SealName("names", "a")), len(k.SealName("names", "fifteen letters")))
	require.Less(t, len(k.SealName("manifests", strings.Repeat("0", 64))), 200)
	require.Less(t, len(k.SealName("profiles", strings.Repeat("0", 81))), 200)
}

func TestEpochs(t *testing.T) {
	require.Equal(t, uint32(0), EpochAt(time.Unix(-1, 0)))
	require.Equal(t, uint32(0), EpochAt(time.Unix(7862399, 0)))
	require.Equal(t, uint32(1), EpochAt(time.Unix(7862400, 0)))
	require.Equal(t, uint32(228), EpochAt(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)))
}

func FuzzOpenObject(f *testing.F) {
	k := fixed("default")
	good := k.SealObject("kind", "name", []byte("data"))
	f.Add(good)
	f.Add(good[:objectHeader])
	f.Fuzz(func(t *testing.T, b []byte) {
		data, err := k.OpenObject("kind", "name", bytes.Clone(b))
		if err == nil {
			require.Equal(t, b, k.SealObject("kind", "name", data))
		} else {
			require.True(t, fault.Is(err, fault.Corrupt), err)
		}
	})
}

func FuzzOpenName(f *testing.F) {
	k := fixed("default")
	f.Add(k.SealName("names", "web"))
	f.Add("0123")
	f.Fuzz(func(t *testing.T, sealed string) {
		name, err := k.OpenName("names", sealed)
		if err == nil {
			require.Equal(t, sealed, k.SealName("names", name))
		} else {
			require.True(t, fault.Is(err, fault.Corrupt), err)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add(formatKey("default", [32]byte{1}))
	f.Add("brisk-key 1 default 00 00")
	f.Fuzz(func(t *testing.T, text string) {
		workspace, secret, err := parseKey(text)
		if err == nil {
			require.Equal(t, strings.TrimSpace(text)+"\n", formatKey(workspace, secret))
		} else {
			require.True(t, fault.Is(err, fault.Corrupt), err)
		}
	})
}

// BenchmarkFrame is what sealing adds to a chunk's compression (300 us) and
// opening to its decompression (100 us).
func BenchmarkFrame(b *testing.B) {
	k := fixed("default")
	digest := blake3.Sum256([]byte("content"))
	frame := make([]byte, 56<<10) // of a chunk at the usual ratio
	buf := make([]byte, 0, len(frame)+Overhead)
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(int64(len(frame)))
		b.ReportAllocs()
		for b.Loop() {
			k.SealFrame(buf, digest, 1, frame)
		}
	})
	sealed := k.SealFrame(nil, digest, 1, frame)
	b.Run("open", func(b *testing.B) {
		b.SetBytes(int64(len(frame)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := k.OpenFrame(digest, 1, append(buf[:0], sealed...)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
