package peer

import (
	"context"
	"testing"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.TestPeers(t, func(t *testing.T) (store.Peers, func(string, store.Digest, []byte)) {
		r := newRig(t, "a", "b")
		type key struct {
			workspace string
			name      store.Digest
		}
		b, chunks := r.nodes["b"], map[key][]byte{}
		b.peers.opts.Serve = func(_ context.Context, w string, d store.Digest) ([]byte, error) {
			if answer, is := chunks[key{w, d}]; is {
				return answer, nil
			}
			return nil, fault.New(fault.NotFound, "not here")
		}
		return r.nodes["a"].peers, func(w string, d store.Digest, answer []byte) { chunks[key{w, d}] = answer }
	})
}
