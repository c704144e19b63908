package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// TestPeers is the suite that each store.Peers passes. open gives peers of which
// one other machine can be asked, and a function that gives that machine a chunk.
func TestPeers(t *testing.T, open func(t *testing.T) (p store.Peers, have func(workspace string, name store.Digest, answer []byte))) {
	name := store.Sum([]byte("a name"))
	for what, test := range map[string]func(t *testing.T, p store.Peers, have func(string, store.Digest, []byte)){
		"what nobody has is not found": func(t *testing.T, p store.Peers, have func(string, store.Digest, []byte)) {
			have("w", store.Sum([]byte("another")), []byte("x"))
			err := p.Fetch(t.Context(), "w", name, func([]byte) error { panic("there is no answer") })
			require.Equal(t, fault.NotFound, fault.ClassOf(err), "%v", err)
		},
		"what one has is answered": func(t *testing.T, p store.Peers, have func(string, store.Digest, []byte)) {
			have("w", name, []byte("sealed"))
			var got []byte
			require.NoError(t, p.Fetch(t.Context(), "w", name, func(b []byte) error {
				got = append(got, b...)
				clear(b) // it is ours
				return nil
			}))
			require.Equal(t, "sealed", string(got))
			got = nil
			require.NoError(t, p.Fetch(t.Context(), "w", name, func(b []byte) error { got = append(got, b...); return nil }))
			require.Equal(t, "sealed", string(got), "again")
		},
		"the largest answer arrives": func(t *testing.T, p store.Peers, have func(string, store.Digest, []byte)) {
			have("w", name, make([]byte, store.MaxAnswer))
			var n int
			require.NoError(t, p.Fetch(t.Context(), "w", name, func(b []byte) error { n = len(b); return nil }))
			require.Equal(t, store.MaxAnswer, n)
		},
		"workspaces are apart": func(t *testing.T, p store.Peers, have func(string, store.Digest, []byte)) {
			have("w", name, []byte("sealed"))
			err := p.Fetch(t.Context(), "v", name, func([]byte) error { return nil })
			require.Equal(t, fault.NotFound, fault.ClassOf(err), "%v", err)
		},
		"an answer that is refused is none": func(t *testing.T, p store.Peers, have func(string, store.Digest, []byte)) {
			have("w", name, []byte("lies"))
			err := p.Fetch(t.Context(), "w", name, func([]byte) error { return errors.New("no") })
			require.Equal(t, fault.NotFound, fault.ClassOf(err), "%v", err)
		},
		"who has gone gets nothing": func(t *testing.T, p store.Peers, have func(string, store.Digest, []byte)) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, p.Fetch(ctx, "w", name, func([]byte) error { return errors.New("too late") }))
		},
		"announcing never blocks": func(_ *testing.T, p store.Peers, _ func(string, store.Digest, []byte)) {
			for range 100_000 {
				p.Announce("w", name)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			p, have := open(t)
			test(t, p, have)
		})
	}
}
