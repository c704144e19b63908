package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// buildPack makes a pack of pieces.
func buildPack(t testing.TB, pieces ...[]byte) []byte { return buildSealed(t, nil, pieces...) }

// testKeys gives new keys.
func testKeys(t testing.TB, workspace string) *seal.Keys {
	t.Helper()
	ring, err := seal.OpenKeyring(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ring.Keys(workspace)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// buildSealed makes a pack that is sealed with keys, in epoch 7, unless they are nil.
func buildSealed(t testing.TB, keys *seal.Keys, pieces ...[]byte) []byte {
	t.Helper()
	w, err := newPackWriter(t.TempDir(), keys, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer w.file.Close()
	for _, p := range pieces {
		frame, raw := encodeFrame(p, make([]byte, 0, 2*ChunkSize))
		if keys != nil {
			frame = keys.SealFrame(nil, Sum(p), 7, frame)
		}
		if err := w.add(Sum(p), uint32(len(p)), frame, raw); err != nil {
			t.Fatal(err)
		}
	}
	sealed, err := w.seal()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(sealed.path)
	if err != nil {
		t.Fatal(err)
	}
	if sealed.digest != Sum(b) || sealed.size != int64(len(b)) {
		t.Fatalf("sealed as %v, %d bytes", sealed.digest, sealed.size)
	}
	return b
}

var (
	text  = []byte(strings.Repeat("the quick brown fox jumps over the lazy dog\n", 1000))
	short = []byte("x")
)

func noise(n int) []byte {
	h := blake3.New()
	b := make([]byte, n)
	h.Digest().Read(b)
	return b
}

func indexOf(b []byte) (packIndex, error) {
	x, _, err := sealedIndexOf(nil, b)
	return x, err
}

func sealedIndexOf(keys *seal.Keys, b []byte) (packIndex, packSeal, error) {
	return decodePackIndex(int64(len(b)), keys, func(p []byte, off int64) error {
		if off < 0 || off+int64(len(p)) > int64(len(b)) {
			return errors.New("read outside the pack")
		}
		copy(p, b[off:])
		return nil
	})
}

func TestPackRoundTrip(t *testing.T) {
	pieces := [][]byte{text, short, noise(ChunkSize), noise(ChunkSize)[:5000]}
	b := buildPack(t, pieces...)
	x, err := indexOf(b)
	if err != nil || x.len() != 4 {
		t.Fatal(x.len(), err)
	}
	for i, e := range x.all() {
		got := make([]byte, e.size)
		if err := decodeFrame(b[e.offset:e.offset+e.stored], e.raw, got); err != nil || !bytes.Equal(got, pieces[i]) || Sum(got) != e.digest {
			t.Fatalf("piece %d: %v", i, err)
		}
		if want := i != 0; e.raw != want {
			t.Fatalf("piece %d: raw %v", i, e.raw)
		}
	}
}

// A pack that version 1 wrote is readable for ever.
func TestPackVersion1(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "v1.pack"))
	if err != nil {
		t.Fatal(err)
	}
	x, err := indexOf(b)
	if err != nil || x.len() != 3 {
		t.Fatal(err)
	}
	for i, want := range [][]byte{text, short, noise(300)} {
		e := x.at(i)
		got := make([]byte, e.size)
		if err := decodeFrame(b[e.offset:e.offset+e.stored], e.raw, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("piece %d: %v", i, err)
		}
	}
	if got := Sum(b).String(); got != "e424c8d5373865d9bd6bee71cb8aa4e709548f8fdc8949a613835d5982df2729" {
		t.Fatalf("digest %s", got)
	}
}

// No byte of footer and index can change unnoticed, nor the length.
func TestPackIndexDamage(t *testing.T) {
	b := buildPack(t, text, short)
	start := len(b) - packFooter - 2*packEntry
	for i := start; i < len(b); i++ {
		bad := bytes.Clone(b)
		bad[i] ^= 0x40
		if _, err := indexOf(bad); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("byte %d: %v", i-start, err)
		}
	}
	for n := range b {
		if _, err := indexOf(b[:n]); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
	if _, err := indexOf(append(bytes.Clone(b), 0)); !fault.Is(err, fault.Corrupt) {
		t.Fatal(err)
	}
}

// Indexes whose checksum is right and whose content is not.
func TestPackIndexLies(t *testing.T) {
	le := binary.LittleEndian
	for name, lie := range map[string]func(x packIndex) packIndex{
		"zero digest":       func(x packIndex) packIndex { clear(x[:32]); return x },
		"gap":               func(x packIndex) packIndex { le.PutUint32(x[packEntry+32:], le.Uint32(x[packEntry+32:])+1); return x },
		"overlap":           func(x packIndex) packIndex { le.PutUint32(x[packEntry+32:], packHeader); return x },
		"before the header": func(x packIndex) packIndex { le.PutUint32(x[32:], 0); return x },
		"no bytes":          func(x packIndex) packIndex { le.PutUint32(x[36:], 0); return x },
		"too many bytes":    func(x packIndex) packIndex { le.PutUint32(x[36:], 1<<31); return x },
		"empty chunk":       func(x packIndex) packIndex { le.PutUint32(x[40:], 0); return x },
		"bomb":              func(x packIndex) packIndex { le.PutUint32(x[40:], ChunkSize+1); return x },
		"unknown flag":      func(x packIndex) packIndex { le.PutUint32(x[44:], 2); return x },
		"plain but shorter": func(x packIndex) packIndex { le.PutUint32(x[44:], flagRaw); return x },
		"listed twice":      func(x packIndex) packIndex { copy(x[packEntry:packEntry+32], x[:32]); return x },
		"one missing":       func(x packIndex) packIndex { return x[:packEntry] },
		"none":              func(x packIndex) packIndex { return x[:0] },
		"half an entry":     func(x packIndex) packIndex { return x[:packEntry+24] },
	} {
		b := buildPack(t, text, short)
		off := len(b) - packFooter - 2*packEntry
		x := lie(bytes.Clone(b[off : len(b)-packFooter]))
		bad := append(bytes.Clone(b[:off]), x...)
		bad = append(bad, encodePackFooter(x, int64(off), packSeal{}, seal.ID{}, [16]byte{})...)
		if _, err := indexOf(bad); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The index of many small chunks is longer than what is read at first.
func TestPackLongIndex(t *testing.T) {
	var pieces [][]byte
	for i := range 5000 {
		pieces = append(pieces, binary.LittleEndian.AppendUint32(nil, uint32(i+1)))
	}
	b := buildPack(t, pieces...)
	reads := 0
	x, _, err := decodePackIndex(int64(len(b)), nil, func(p []byte, off int64) error { reads++; copy(p, b[off:]); return nil })
	if err != nil || x.len() != 5000 || reads != 2 {
		t.Fatal(x.len(), reads, err)
	}
}

// A frame cannot become larger than its chunk, whatever it claims.
func TestBomb(t *testing.T) {
	bomb := encoder().EncodeAll(make([]byte, 64<<20), nil)
	dst := make([]byte, ChunkSize, 2*ChunkSize)
	if err := decodeFrame(bomb, false, dst); !fault.Is(err, fault.Corrupt) {
		t.Fatal(err)
	}
	if _, err := decodeBlob(bomb, 1<<20); !fault.Is(err, fault.Corrupt) {
		t.Fatal(err)
	}
	if !bytes.Equal(dst[:2*ChunkSize][ChunkSize:], make([]byte, ChunkSize)) {
		t.Fatal("it wrote past the chunk")
	}
	allocated := testing.AllocsPerRun(3, func() { decodeFrame(bomb, false, dst) })
	if allocated > 50 {
		t.Fatalf("%v allocations", allocated)
	}
}

// A sealed pack: without the keys nothing of it can be told, and only what the keys
// made opens.
func TestSealedPack(t *testing.T) {
	keys, others := testKeys(t, "a"), testKeys(t, "b")
	pieces := [][]byte{text, short, noise(ChunkSize)}
	b := buildSealed(t, keys, pieces...)
	if !bytes.Equal(b, buildSealed(t, keys, pieces...)) {
		t.Fatal("equal chunks make another pack")
	}
	x, how, err := sealedIndexOf(keys, b)
	if err != nil || x.len() != 3 || how != (packSeal{sealed: true, epoch: 7}) {
		t.Fatal(x.len(), how, err)
	}
	for i, e := range x.all() {
		frame, err := keys.OpenFrame(e.digest, how.epoch, bytes.Clone(b[e.offset:e.offset+e.stored]))
		got := make([]byte, e.size)
		if err == nil {
			err = decodeFrame(frame, e.raw, got)
		}
		if err != nil || !bytes.Equal(got, pieces[i]) {
			t.Fatalf("piece %d: %v", i, err)
		}
		if d := Sum(pieces[i]); bytes.Contains(b, d[:8]) {
			t.Fatal("a digest is in the pack")
		}
	}
	plain := buildPack(t, pieces...)
	for name, open := range map[string]func() error{
		"with other keys":          func() error { _, _, err := sealedIndexOf(others, b); return err },
		"without keys":             func() error { _, _, err := sealedIndexOf(nil, b); return err },
		"a plain one, with keys":   func() error { _, _, err := sealedIndexOf(keys, plain); return err },
		"of version 1, with keys":  func() error { _, _, err := sealedIndexOf(keys, oldPack(t)); return err },
		"its frames for no others": func() error { _, err := others.OpenFrame(Sum(text), 7, bytes.Clone(b[packHeader:])); return err },
	} {
		if err := open(); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := len(b) - packFooter - len(x) - seal.ObjectOverhead; i < len(b); i++ {
		bad := bytes.Clone(b)
		bad[i] ^= 0x40
		if _, _, err := sealedIndexOf(keys, bad); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
}

func oldPack(t *testing.T) []byte {
	b, err := os.ReadFile(filepath.Join("testdata", "v1.pack"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Version 2 as the first Brisk that had it wrote it.
func TestPackVersion2(t *testing.T) {
	if got := Sum(buildPack(t, text, short, noise(300))).String(); got != "57fa31117059cf08c7c92cc6e4378749cdc896d21760899434647eb95f7f7652" {
		t.Fatalf("digest %s", got)
	}
}

// Another salt gives the pack another name, and changes nothing of what it says.
func TestResalt(t *testing.T) {
	for _, keys := range []*seal.Keys{nil, testKeys(t, "a")} {
		w, err := newPackWriter(t.TempDir(), keys, 7)
		if err != nil {
			t.Fatal(err)
		}
		defer w.file.Close()
		if err := w.add(Sum(text), uint32(len(text)), make([]byte, 100), false); err != nil {
			t.Fatal(err)
		}
		p, err := w.seal()
		if err != nil {
			t.Fatal(err)
		}
		names := map[Digest]bool{p.digest: true}
		for range 3 {
			if err := p.resalt(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(p.path)
			if err != nil || int64(len(b)) != p.size || Sum(b) != p.digest || names[p.digest] {
				t.Fatalf("%d bytes, %v, %v", len(b), p.digest, err)
			}
			names[p.digest] = true
			x, how, err := sealedIndexOf(keys, b)
			if err != nil || how != p.how || !bytes.Equal(x, p.index) {
				t.Fatal(how, err)
			}
		}
	}
}

// FuzzSealedPack opens packs with keys: nothing but what these have sealed is taken.
func FuzzSealedPack(f *testing.F) {
	keys := testKeys(f, "a")
	good := buildSealed(f, keys, text, short)
	f.Add(good)
	f.Add(good[16:])
	f.Add(buildPack(f, text))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, how, err := sealedIndexOf(keys, b)
		if err == nil && !how.sealed || err != nil && !fault.Is(err, fault.Corrupt) {
			t.Fatal(how, err)
		}
		// As if the checksum were right.
		if len(b) > packFooter {
			foot := bytes.Clone(b[len(b)-packFooter:])
			sum := footerSum(b[:len(b)-packFooter], foot)
			copy(foot[48:], sum[:])
			if _, _, err := openPackIndex(bytes.Clone(b[:len(b)-packFooter]), foot, keys); err != nil && !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
		}
	})
}

func FuzzPackIndex(f *testing.F) {
	b := buildPack(f, text, short)
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add(append(make([]byte, 128<<10), b...))
	f.Add(encodePackFooter(nil, 0, packSeal{}, seal.ID{}, [16]byte{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		// Checksums keep a fuzzer out; so the index is also tried as if they were right.
		if len(b) > packFooter {
			x := packIndex(b[:len(b)-packFooter])
			x.check(int64(len(b)), packSeal{})
		}
		x, err := indexOf(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		for _, e := range x.all() {
			dst := make([]byte, e.size)
			decodeFrame(b[e.offset:e.offset+e.stored], e.raw, dst)
		}
	})
}

func FuzzFrame(f *testing.F) {
	frame, _ := encodeFrame(text, nil)
	f.Add(frame, uint32(len(text)))
	f.Add(frame, uint32(10))
	f.Add(encoder().EncodeAll(make([]byte, 1<<20), nil), uint32(ChunkSize))
	f.Fuzz(func(t *testing.T, frame []byte, size uint32) {
		dst := make([]byte, size%ChunkSize+1, ChunkSize+1)
		err := decodeFrame(frame, false, dst)
		if err != nil && !fault.Is(err, fault.Corrupt) {
			t.Fatal(err)
		}
		blob, err := decodeBlob(frame, 1<<20)
		if err != nil && !fault.Is(err, fault.Corrupt) || len(blob) > 1<<20 {
			t.Fatal(len(blob), err)
		}
	})
}

func FuzzIndexLog(f *testing.F) {
	b := buildPack(f, text, short)
	x, err := indexOf(b)
	if err != nil {
		f.Fatal(err)
	}
	log := indexLog{path: filepath.Join(f.TempDir(), "log")}
	known := newIndex()
	known.add(newPack(Sum(b), int64(len(b)), x, packSeal{}))
	known.markDamaged(Sum(text), Sum(b))
	if err := log.create(known); err != nil {
		f.Fatal(err)
	}
	log.close()
	good, err := os.ReadFile(log.path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		packs, _ := decodeIndexLog(b)
		for _, p := range packs {
			if p.index.len() == 0 || len(p.index)%packEntry != 0 {
				t.Fatal(len(p.index))
			}
		}
	})
}

// The local copy cut anywhere gives what was before the cut, and says that it is damaged.
func TestIndexLogCut(t *testing.T) {
	p1, p2 := buildPack(t, text), buildPack(t, short)
	x1, _ := indexOf(p1)
	x2, _ := indexOf(p2)
	log := indexLog{path: filepath.Join(t.TempDir(), "log")}
	known := newIndex()
	if err := log.create(known); err != nil {
		t.Fatal(err)
	}
	defer log.close()
	for _, p := range []*pack{newPack(Sum(p1), 1, x1, packSeal{}), newPack(Sum(p2), 2, x2, packSeal{})} {
		known.add(p)
		if err := log.addPack(known, p, p.index); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(log.path)
	if err != nil {
		t.Fatal(err)
	}
	record := (len(b) - logHeader) / 2
	for n := range b {
		packs, rewrite := decodeIndexLog(b[:n])
		want := max(n-logHeader, 0) / record
		if len(packs) != want || rewrite != (n != logHeader && n != logHeader+record) {
			t.Fatalf("cut to %d: %d packs, rewrite %v", n, len(packs), rewrite)
		}
	}
	if packs, rewrite := decodeIndexLog(b); len(packs) != 2 || rewrite {
		t.Fatal(len(packs), rewrite)
	}
}

func TestKeyDigest(t *testing.T) {
	d := Sum(text)
	if got, ok := keyDigest("packs/", packKey(d)); !ok || got != d {
		t.Fatal(got, ok)
	}
	hex := d.String()
	for _, key := range []string{"packs/" + hex, "packs/zz/" + hex, "packs/" + hex[:2] + "/" + hex[:62] + "zz", "packs/" + hex[:2] + "/" + strings.ToUpper(hex), ""} {
		if _, ok := keyDigest("packs/", key); ok {
			t.Errorf("%q is taken for a pack", key)
		}
	}
}

func TestOpenNeedsItsParts(t *testing.T) {
	for _, o := range []Options{{}, {Dir: t.TempDir()}} {
		if _, err := Open(context.Background(), o); !fault.Is(err, fault.Invalid) {
			t.Fatal(err)
		}
	}
}
