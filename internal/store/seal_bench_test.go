package store_test

import (
	"fmt"
	"testing"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// BenchmarkSealing adds 64 MiB of chunks that compress to two thirds, and reads them
// back, plain and sealed: what sealing costs beside compression.
func BenchmarkSealing(b *testing.B) {
	const pieces = 512
	data := make([][]byte, pieces)
	for i := range data {
		data[i] = storetest.Data(uint64(i), store.ChunkSize)
	}
	for _, sealed := range []bool{false, true} {
		b.Run(fmt.Sprintf("add/sealed=%v", sealed), func(b *testing.B) {
			b.SetBytes(pieces * store.ChunkSize)
			for b.Loop() {
				s := storetest.With(b, store.Options{Dir: b.TempDir(), Origin: storetest.NewMemOrigin(), Keys: keysOf(b, "a"), Sealed: sealed})
				storetest.Commit(b, s, data...)
				s.Close()
			}
		})
		b.Run(fmt.Sprintf("read/sealed=%v", sealed), func(b *testing.B) {
			s := storetest.With(b, store.Options{Dir: b.TempDir(), Origin: storetest.NewMemOrigin(), Keys: keysOf(b, "a"), Sealed: sealed})
			chunks, _ := storetest.Commit(b, s, data...)
			dst := make([]byte, store.ChunkSize)
			b.SetBytes(pieces * store.ChunkSize)
			for b.Loop() {
				for _, c := range chunks {
					if _, err := s.ReadChunk(b.Context(), c, dst); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
