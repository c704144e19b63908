package image

import (
	"encoding/binary"
	"slices"
	"time"
	"unicode/utf8"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// The profile format, version 1: docs/format/profile.md.
const (
	profileMagic   = "BRSKPROF"
	profileVersion = 1
	profileHeader  = 88 // bytes up to the label
	profileChunk   = 48
	profilePack    = 40
	profileFrame   = 16
	profileSum     = 32

	flagLate     = 1
	frameRaw     = 1
	maxHotPacks  = 1 << 10
	maxProfileIn = 8 << 20 // bytes of a profile that is read
)

// Encode gives the stored form.
func (p *Profile) Encode() []byte {
	place := make(map[store.Digest]uint32, len(p.Chunks))
	table := p.Chunks
	for i, c := range table {
		place[c.Digest] = uint32(i)
	}
	frames := 0
	for _, h := range p.Hot {
		for _, f := range h.Frames {
			frames++
			if _, ok := place[f.Digest]; !ok {
				place[f.Digest] = uint32(len(table))
				table = append(slices.Clip(table), ProfileChunk{Chunk: f.Chunk})
			}
		}
	}
	label := p.Entry.Label
	b := make([]byte, 0, profileHeader+len(label)+len(table)*profileChunk+len(p.Hot)*profilePack+frames*profileFrame+profileSum)
	le := binary.LittleEndian
	b = append(b, profileMagic...)
	b = le.AppendUint32(b, profileVersion)
	b = le.AppendUint32(b, uint32(len(label)))
	b = append(b, p.Image[:]...)
	b = append(b, p.Entry.ID[:]...)
	b = le.AppendUint64(b, uint64(p.Updated.Unix()))
	b = le.AppendUint32(b, p.Runs)
	b = le.AppendUint32(b, p.Partial)
	b = le.AppendUint32(b, uint32(len(p.Chunks)))
	b = le.AppendUint32(b, uint32(len(table)))
	b = le.AppendUint32(b, uint32(len(p.Hot)))
	b = le.AppendUint32(b, 0)
	b = append(b, label...)
	for _, c := range table {
		b = append(b, c.Digest[:]...)
		b = le.AppendUint32(b, c.Size)
		b = le.AppendUint32(b, c.Rank)
		flags := uint32(0)
		if c.Late {
			flags = flagLate
		}
		b = le.AppendUint32(b, flags)
		b = le.AppendUint32(b, uint32(c.Heat))
	}
	for _, h := range p.Hot {
		b = append(b, h.Pack[:]...)
		b = le.AppendUint32(b, h.Epoch)
		b = le.AppendUint32(b, uint32(len(h.Frames)))
		for _, f := range h.Frames {
			b = le.AppendUint32(b, place[f.Digest])
			b = le.AppendUint32(b, f.Offset)
			b = le.AppendUint32(b, f.Stored)
			flags := uint32(0)
			if f.Raw {
				flags = frameRaw
			}
			b = le.AppendUint32(b, flags)
		}
	}
	sum := store.Sum(b)
	return append(b, sum[:]...)
}

// ParseProfile reads what Encode wrote; anything else is of class fault.Corrupt.
func ParseProfile(b []byte) (*Profile, error) {
	bad := func(format string, args ...any) (*Profile, error) {
		return nil, fault.Wrap(fault.New(fault.Corrupt, format, args...), "read", "profile")
	}
	le := binary.LittleEndian
	if len(b) < profileHeader+profileSum || len(b) > maxProfileIn || string(b[:8]) != profileMagic {
		return bad("%d bytes are not a profile", len(b))
	}
	if v := le.Uint32(b[8:]); v != profileVersion {
		return bad("format version %d; this Brisk reads %d", v, profileVersion)
	}
	body, sum := b[:len(b)-profileSum], b[len(b)-profileSum:]
	if store.Sum(body) != store.Digest(sum) {
		return bad("its checksum does not match")
	}
	labelLen, live, table, packs := le.Uint32(b[12:]), le.Uint32(b[72:]), le.Uint32(b[76:]), le.Uint32(b[80:])
	if labelLen > maxLabel || live > maxProfile || table < live || packs > maxHotPacks || le.Uint32(b[84:]) != 0 {
		return bad("it has counts that cannot be")
	}
	rest := body[profileHeader:]
	if uint64(len(rest)) < uint64(labelLen)+uint64(table)*profileChunk {
		return bad("it is cut short")
	}
	p := &Profile{
		Image: store.Digest(b[16:48]), Updated: time.Unix(int64(le.Uint64(b[56:])), 0),
		Runs: le.Uint32(b[64:]), Partial: le.Uint32(b[68:]),
	}
	p.Entry = Entry{ID: EntryID(b[48:56]), Label: string(rest[:labelLen])}
	if !utf8.ValidString(p.Entry.Label) {
		return bad("its label is no text")
	}
	rest = rest[labelLen:]
	chunks := make([]ProfileChunk, table)
	known := make(map[store.Digest]struct{}, table)
	for i := range chunks {
		e := rest[i*profileChunk:][:profileChunk]
		flags, heat := le.Uint32(e[40:]), le.Uint32(e[44:])
		c := ProfileChunk{
			Chunk: store.Chunk{Digest: store.Digest(e[:32]), Size: le.Uint32(e[32:])},
			Rank:  le.Uint32(e[36:]), Late: flags&flagLate != 0, Heat: uint8(min(heat, 255)),
		}
		_, twice := known[c.Digest]
		known[c.Digest] = struct{}{}
		switch {
		case twice, c.Digest.IsZero(), c.Size == 0, c.Size > store.ChunkSize, flags&^flagLate != 0:
			return bad("chunk %d cannot be", i)
		case i >= int(live) && (heat != 0 || flags != 0 || c.Rank != 0):
			return bad("chunk %d is in no order", i)
		case i < int(live) && (heat == 0 || heat > hottest):
			return bad("chunk %d has heat %d", i, heat)
		case i > 0 && i < int(live) && before(c, chunks[i-1]):
			return bad("chunk %d is out of order", i)
		}
		chunks[i] = c
	}
	p.Chunks = chunks[:live:live]
	rest = rest[int(table)*profileChunk:]
	for range packs {
		if len(rest) < profilePack {
			return bad("it is cut short")
		}
		h := store.HotPack{Pack: store.Digest(rest[:32]), Epoch: le.Uint32(rest[32:])}
		n := le.Uint32(rest[36:])
		rest = rest[profilePack:]
		if n == 0 || uint64(len(rest)) < uint64(n)*profileFrame {
			return bad("a hot pack is cut short")
		}
		h.Frames = make([]store.Frame, n)
		end := uint64(0)
		for i := range h.Frames {
			e := rest[i*profileFrame:][:profileFrame]
			at, flags := le.Uint32(e), le.Uint32(e[12:])
			if at >= table || flags&^frameRaw != 0 {
				return bad("frame %d of a hot pack cannot be", i)
			}
			f := store.Frame{Chunk: chunks[at].Chunk, Offset: le.Uint32(e[4:]), Stored: le.Uint32(e[8:]), Raw: flags&frameRaw != 0}
			if f.Stored == 0 || f.Stored > store.MaxFrame || uint64(f.Offset) < end {
				return bad("frame %d of a hot pack cannot be", i)
			}
			end = uint64(f.Offset) + uint64(f.Stored)
			h.Frames[i] = f
		}
		rest = rest[int(n)*profileFrame:]
		p.Hot = append(p.Hot, h)
	}
	if len(rest) != 0 {
		return bad("%d bytes follow its end", len(rest))
	}
	return p, nil
}

// before reports whether a belongs before b in the order of use.
func before(a, b ProfileChunk) bool {
	if a.Late != b.Late {
		return b.Late
	}
	return a.Rank < b.Rank
}
