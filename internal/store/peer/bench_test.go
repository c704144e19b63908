package peer

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/store"
)

// BenchmarkFetch is one chunk of the largest size from a peer on the same machine,
// through TLS and HTTP/2, without what the store does with it; in parallel, and one
// after the other.
func BenchmarkFetch(b *testing.B) {
	r := &rig{t: b, nodes: map[string]*node{}, all: map[string]*node{}}
	answer := make([]byte, store.MaxAnswer)
	_, _ = rand.Read(answer)
	for _, name := range []string{"a", "b"} {
		r.add(Options{Deadline: 5 * time.Second}, name)
	}
	r.nodes["b"].peers.opts.Serve = func(context.Context, string, store.Digest) ([]byte, error) { return answer, nil }
	r.meet()
	a := r.nodes["a"].peers
	fetch := func(b *testing.B) {
		require.NoError(b, a.Fetch(context.Background(), "w", name(1), func([]byte) error { return nil }))
	}
	b.Run("serial", func(b *testing.B) {
		b.SetBytes(store.MaxAnswer)
		for b.Loop() {
			fetch(b)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.SetBytes(store.MaxAnswer)
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				fetch(b)
			}
		})
	})
}
