package peer

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// What is asked, and where: docs/format/peer.md.
const (
	pathChunks    = "/v1/chunks/"
	pathAnnounce  = "/v1/announce"
	pathPing      = "/v1/ping"
	headerHolders = "Brisk-Holders"
)

// PatternChunk, PatternAnnounce and PatternPing are what the handlers of their
// names answer, in the form of http.ServeMux.
const (
	PatternChunk    = "GET " + pathChunks + "{workspace}/{name}"
	PatternAnnounce = "POST " + pathAnnounce
	PatternPing     = "GET " + pathPing
)

func chunkPath(workspace string, name store.Digest) string {
	return pathChunks + workspace + "/" + name.String()
}

// writeTime is how long a member may take to read an answer.
const writeTime = 5 * time.Second

// ServePing answers who only wants to know how far away we are.
func (p *Peers) ServePing(w http.ResponseWriter, _ *http.Request, _ string) {
	w.WriteHeader(http.StatusNoContent)
}

// ServeChunk answers a member that wants a chunk: with the chunk if the cache has
// it, else with who has announced it. It never asks the origin, nor anybody.
func (p *Peers) ServeChunk(w http.ResponseWriter, r *http.Request, from string) {
	done := p.admit(from)
	if done == nil {
		p.refused.Add(1)
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	defer done()
	name, err := store.ParseDigest(r.PathValue("name"))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*p.opts.Deadline) // nobody waits longer
	defer cancel()
	answer, err := p.opts.Serve(ctx, r.PathValue("workspace"), name)
	if err != nil || len(answer) > store.MaxAnswer {
		if !fault.Is(err, fault.NotFound) {
			p.log.Warn("a chunk cannot be served", "to", from, "chunk", name.Short(), "err", err)
		}
		p.sendElsewhere(w, from, &name)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime)) // HTTP/2 can
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	if _, err := w.Write(answer); err != nil {
		return // it has gone
	}
	h := p.served(from)
	h.servedChunks.Add(1)
	h.servedBytes.Add(int64(len(answer)))
	p.given.Add(1)
	p.givenBytes.Add(int64(len(answer)))
}

// sendElsewhere says who has the chunk, but for whoever asks.
func (p *Peers) sendElsewhere(w http.ResponseWriter, from string, name *store.Digest) {
	l := slices.DeleteFunc(p.directory.find(name), func(h string) bool { return h == from })
	if len(l) > 0 {
		w.Header().Set(headerHolders, strings.Join(l, ","))
	}
	w.WriteHeader(http.StatusNotFound)
}

func (p *Peers) served(to string) *history {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.historyOf(to)
}

// admit lets a request in, or is nil: nobody waits here, since whoever asks has
// others to ask.
func (p *Peers) admit(from string) (done func()) {
	select {
	case p.answering <- struct{}{}:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.asking[from] >= p.opts.Parallel {
		<-p.answering
		return nil
	}
	p.asking[from]++
	return func() {
		p.mu.Lock()
		if p.asking[from]--; p.asking[from] == 0 {
			delete(p.asking, from)
		}
		p.mu.Unlock()
		<-p.answering
	}
}

// ServeAnnounce takes note of what a member has.
func (p *Peers) ServeAnnounce(w http.ResponseWriter, r *http.Request, from string) {
	b, err := io.ReadAll(io.LimitReader(r.Body, int64(maxAnnounce)+1))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	names, err := decodeAnnouncement(b)
	if err != nil {
		p.log.Warn("a peer's announcement was refused", "peer", from, "err", err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p.directory.add(from, names)
	w.WriteHeader(http.StatusNoContent)
}
