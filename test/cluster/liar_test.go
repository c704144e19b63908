package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"

	"brisk.dev/brisk/internal/cluster"
	"brisk.dev/brisk/internal/store/peer"
)

// liarVariable makes the test binary a node that has everything and gives
// garbage; its value is the node's directory.
const liarVariable = "BRISK_TEST_LIAR"

func lie(dir string) {
	c, err := cluster.Open(context.Background(), cluster.Options{
		Dir: dir, Listen: ":7720", Version: "liar", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	c.Handle(peer.PatternChunk, func(w http.ResponseWriter, _ *http.Request, _ string) {
		b := make([]byte, 100_000)
		_, _ = rand.Read(b[8:])
		b[0] = 1 // the version of an answer
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b)
	})
	fine := func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusNoContent) }
	c.Handle(peer.PatternAnnounce, fine)
	c.Handle(peer.PatternPing, fine)
	c.Start()
	select {} // until it is killed
}
