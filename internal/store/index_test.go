package store

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/store/digestmap"
)

func indexedPack(name byte, chunks ...uint64) *pack {
	var x packIndex
	for i, c := range chunks {
		e := entry{size: 1, stored: 1, raw: true, offset: uint32(packHeader + i)}
		binary.LittleEndian.PutUint64(e.digest[:], c+1)
		x = x.append(e)
	}
	return newPack(Digest{name, 1}, int64(len(chunks)), x, packSeal{})
}

func numberedChunk(c uint64) (d Digest) {
	binary.LittleEndian.PutUint64(d[:], c+1)
	return d
}

// The index knows the copies of the packs that were added and not removed, and which of
// them are damaged, wherever their own indexes lie, also when the numbers have been used up in between.
func TestIndexModel(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex()
		log := &indexLog{path: filepath.Join(dir, "packs.idx")}
		defer func() { log.close() }()
		require.NoError(t, log.create(x))
		packs, damaged := map[byte][]uint64{}, map[[2]uint64]bool{}
		forget := func(name byte) {
			delete(packs, name)
			for k := range damaged {
				if k[0] == uint64(name) {
					delete(damaged, k)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				name := rapid.ByteRange(0, 5).Draw(t, "pack")
				chunks := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 12), 1, 6, rapid.ID[uint64]).Draw(t, "chunks")
				p := indexedPack(name, chunks...)
				x.add(p)
				if rapid.Bool().Draw(t, "kept") {
					require.NoError(t, log.addPack(x, p, p.index))
					require.Nil(t, p.index)
				}
				forget(name)
				packs[name] = chunks
			},
			"remove": func(t *rapid.T) {
				name := rapid.ByteRange(0, 5).Draw(t, "pack")
				x.remove(Digest{name, 1})
				forget(name)
			},
			"damage": func(t *rapid.T) {
				name, c := rapid.ByteRange(0, 5).Draw(t, "pack"), rapid.Uint64Range(0, 12).Draw(t, "chunk")
				key := [2]uint64{uint64(name), c}
				news := slices.Contains(packs[name], c) && !damaged[key]
				require.Equal(t, news, x.markDamaged(numberedChunk(c), Digest{name, 1}))
				if news {
					damaged[key] = true
				}
			},
			"rewrite": func(t *rapid.T) {
				require.NoError(t, log.create(x))
				for _, p := range x.packs {
					require.Nil(t, p.index)
				}
			},
			"reopen": func(t *rapid.T) {
				require.NoError(t, log.create(x))
				log.close()
				log = &indexLog{path: log.path}
				packs, rewrite, err := log.read()
				require.NoError(t, err)
				x = newIndex()
				for d, p := range packs {
					x.add(newPack(d, p.size, p.index, p.how))
					for _, c := range p.damaged {
						x.markDamaged(c, d)
					}
				}
				if rewrite { // most of it is damage
					require.NoError(t, log.create(x))
				} else {
					require.NoError(t, log.open(x, packs))
				}
			},
			"use numbers up": func(*rapid.T) { x.next = max(x.next, digestmap.Max-3) },
			"": func(t *rapid.T) {
				for c := range uint64(13) {
					good, bad := 0, 0
					for name, chunks := range packs {
						if slices.Contains(chunks, c) {
							if damaged[[2]uint64{uint64(name), c}] {
								bad++
							} else {
								good++
							}
						}
					}
					found := x.find(nil, numberedChunk(c))
					require.Len(t, found, good+bad)
					for i, at := range found {
						name := at.pack[0]
						require.Equal(t, i >= good, damaged[[2]uint64{uint64(name), c}], "those known to be damaged are last")
					}
					require.Equal(t, good > 0, x.has(numberedChunk(c)))
					require.Equal(t, good+bad > 0, x.knows(numberedChunk(c)))
				}
				for name := range byte(6) {
					bad := false
					for k := range damaged {
						bad = bad || k[0] == uint64(name)
					}
					require.Equal(t, bad, x.isBad(Digest{name, 1}))
				}
				n, chunks, bad, _ := x.counts()
				require.Equal(t, len(packs), n)
				require.Equal(t, len(damaged), bad)
				want := 0
				for _, l := range packs {
					want += len(l)
				}
				require.Equal(t, want, chunks)
			},
		})
	})
}
