package store_test

import (
	"bytes"
	"testing"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestImportAndRead(t *testing.T) {
	dir := t.TempDir()
	s, cache := storetest.Open(t, dir)
	pieces := [][]byte{
		storetest.Data(1, store.ChunkSize),
		storetest.Data(2, 100),
		storetest.Data(1, store.ChunkSize), // again
		make([]byte, 4096),                 // a hole
		storetest.Data(3, 1),
	}
	chunks, w := storetest.Commit(t, s, pieces...)
	if len(w.Packs) != 1 || w.Chunks != 3 || w.NewChunks != 3 || w.Bytes != 131173 || w.NewBytes != 131173 || w.StoredBytes < 65000 || w.StoredBytes > 90000 {
		t.Fatalf("%+v", w)
	}
	if !chunks[3].Digest.IsZero() || chunks[3].Size != 4096 {
		t.Fatalf("hole: %v", chunks[3])
	}
	read := func(s *store.Store, want ...store.Tier) {
		t.Helper()
		for i, c := range chunks {
			dst := bytes.Repeat([]byte{0xaa}, int(c.Size))
			tier, err := s.ReadChunk(t.Context(), c, dst)
			if err != nil || !bytes.Equal(dst, pieces[i]) || tier != want[i] {
				t.Fatalf("chunk %d: tier %v, err %v", i, tier, err)
			}
		}
	}
	o, c := store.FromOrigin, store.FromCache
	read(s, o, o, c, c, o)
	read(s, c, c, c, c, c)
	if st := s.Stats(); st.OriginReads != 3 || st.OriginBytes != 131173 || st.CacheReads != 5 || st.HoleReads != 2 || st.Packs != 1 || st.Chunks != 3 {
		t.Fatalf("%+v", st)
	}
	s.Close()
	cache.Close()
	s, _ = storetest.Open(t, dir)
	read(s, c, c, c, c, c)
	_, again := storetest.Commit(t, s, pieces...)
	if again.NewChunks != 0 || again.StoredBytes != 0 || len(again.Packs) != 1 || again.Packs[0] != w.Packs[0] || again.Chunks != 3 {
		t.Fatalf("%+v", again)
	}
}
