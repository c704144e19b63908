package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Limits of what a request may carry, in bytes.
const (
	MaxInput      = 1 << 30 // of a call: it is held in memory, here and in the sandbox
	maxDefinition = 8 << 20 // of a JSON body
)

// Backend is all that the API stands on. Every member is needed.
type Backend struct {
	Functions Functions
	History   History
	Images    Images
	Builder   Builder
	Importer  Importer
	Exchange  Exchange
	Blobs     Blobs
	Stats     Stats
	Nodes     Nodes

	Housekeeper Housekeeper
	Metrics     http.Handler // of the machine, for Prometheus
}

// Options of a server.
type Options struct {
	Info     Info         // as GET /v1/info gives it
	Shutdown func()       // POST /v1/shutdown was asked for; must not wait for the end
	Log      *slog.Logger // failures that are Brisk's own; nil = none
	MaxInput int64        // bytes of a call's input; 0 = MaxInput
}

// Server answers the API on listeners. Create it with New; Serve until Close.
type Server struct {
	backend  Backend
	opts     Options
	http     http.Server
	draining atomic.Bool
	closing  context.Context // ends with Close
	close    context.CancelFunc

	mu struct {
		sync.Mutex
		conns    map[net.Conn]struct{}
		lastUsed time.Time     // when the last connection ended
		none     chan struct{} // closed when conns becomes empty; set by Close
	}
}

// New makes a server of b.
func New(b Backend, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxInput == 0 {
		o.MaxInput = MaxInput
	}
	s := &Server{backend: b, opts: o}
	s.closing, s.close = context.WithCancel(context.Background())
	s.mu.conns = map[net.Conn]struct{}{}
	s.mu.lastUsed = time.Now()
	s.http = http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		ConnState:         s.connState,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
	}
	s.http.Handler = s.routes()
	return s
}

// connKey leads to a request's net.Conn in its context.
type connKey struct{}

// Serve answers on l until Close; it then returns nil.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Drain refuses new requests as unavailable from now on; those in progress go on.
func (s *Server) Drain() { s.draining.Store(true) }

func errShuttingDown() error { return fault.New(fault.Unavailable, "the server is shutting down") }

// cutGrace is how long Close waits for handlers whose clients it has cut off.
const cutGrace = 5 * time.Second

// DrainIfIdle drains if no client has been connected for at least d. Nobody can
// get in between the look and the drain.
func (s *Server) DrainIfIdle(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.conns) > 0 || time.Since(s.mu.lastUsed) < d {
		return false
	}
	s.Drain()
	return true
}

// Close cancels builds and imports, waits for the requests in progress until ctx
// ends, then cuts their connections, which cancels them. It returns when all
// handlers have returned; an error means that one did not within seconds.
func (s *Server) Close(ctx context.Context) error {
	s.Drain()
	s.close()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	s.mu.Lock()
	none := make(chan struct{})
	if len(s.mu.conns) == 0 {
		close(none)
	} else {
		s.mu.none = none
	}
	s.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-time.After(cutGrace):
		return fault.New(fault.Timeout, "a request goes on though its connection is cut")
	}
}

// long runs work that may take minutes, until the client goes or Close is called:
// the client hears of that.
func (s *Server) long(r *http.Request, work func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	err := work(ctx)
	if fault.Is(err, fault.Cancelled) && s.closing.Err() != nil && r.Context().Err() == nil {
		return errShuttingDown()
	}
	return err
}

func (s *Server) connState(c net.Conn, st http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch st {
	case http.StateNew:
		s.mu.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(s.mu.conns, c)
		s.mu.lastUsed = time.Now()
		if len(s.mu.conns) == 0 && s.mu.none != nil {
			close(s.mu.none)
			s.mu.none = nil
		}
	}
}
