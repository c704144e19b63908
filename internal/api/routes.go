package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"

	"brisk.dev/brisk/internal/fault"
)

// handler answers a request; an error it returns becomes the response, so it
// must not have written anything then.
type handler func(w http.ResponseWriter, r *http.Request) error

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, h handler) { mux.Handle(pattern, s.guard(h)) }
	in := func(method, path string, h handler) { // the workspace
		handle(method+" /v1/w/{w}/"+path, func(w http.ResponseWriter, r *http.Request) error {
			if name := r.PathValue("w"); !slices.Contains(s.opts.Info.Workspaces, name) {
				return fault.New(fault.NotFound, "there is no workspace %q", name)
			}
			return h(w, r)
		})
	}
	handle("GET /v1/info", s.info)
	handle("POST /v1/shutdown", s.shutdown)
	handle("GET /v1/store", s.storeStats)
	handle("GET /v1/metrics", s.metrics)
	handle("POST /v1/store/gc", s.collect)
	handle("POST /v1/store/fsck", s.check)
	handle("GET /v1/nodes", s.nodes)
	handle("POST /v1/nodes/tokens", s.nodeToken)
	handle("DELETE /v1/nodes/{name}", s.removeNode)
	in("HEAD", "blobs/{ref}", s.hasBlob)
	in("PUT", "blobs/{ref}", s.putBlob)
	in("POST", "images/build", s.build)
	in("POST", "images/import", s.importImage)
	in("POST", "images/pull", s.pull)
	in("POST", "images/push", s.push)
	in("POST", "images/export", s.export)
	in("POST", "images/diff", s.diff)
	in("POST", "images/share", s.share)
	in("GET", "images", s.listImages)
	in("GET", "images/{ref...}", s.inspectImage)
	in("DELETE", "images/{ref...}", s.removeImage)
	in("POST", "functions", s.register)
	in("POST", "functions/{digest}/call", s.call)
	in("POST", "run", s.run)
	in("GET", "calls", s.calls)
	in("GET", "calls/{id}", s.callByID)
	in("GET", "instances", s.instances)
	in("GET", "logs", s.logs)
	handle("/", func(_ http.ResponseWriter, r *http.Request) error {
		return fault.New(fault.NotFound, "there is no %s %s in this version of the API", r.Method, r.URL.Path).
			WithHint("Is the client newer than the server? `brisk down` stops an old server; the next command starts a new one.")
	})
	return mux
}

// guard refuses requests while draining, turns errors into
// responses, and keeps a panic from taking the server with it.
func (s *Server) guard(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			s.opts.Log.Error("a handler panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			writeError(w, fault.New(fault.Internal, "%s %s failed; the server's log has the details", r.Method, r.URL.Path))
		}()
		if s.draining.Load() {
			writeError(w, errShuttingDown())
			return
		}
		if err := h(w, r); err != nil {
			if fault.Is(err, fault.Internal) {
				s.opts.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			}
			writeError(w, err)
		}
	})
}

func (s *Server) info(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, s.opts.Info)
	return nil
}

func (s *Server) shutdown(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusAccepted, struct{}{})
	s.opts.Shutdown()
	return nil
}

func (s *Server) storeStats(w http.ResponseWriter, r *http.Request) error {
	return answer(w)(s.backend.Stats.StoreStats(r.Context()))
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	s.backend.Metrics.ServeHTTP(w, r)
	return nil
}

// answer sends a value, or passes the error on.
func answer(w http.ResponseWriter) func(v any, err error) error {
	return func(v any, err error) error {
		if err == nil {
			writeJSON(w, http.StatusOK, v)
		}
		return err
	}
}

// decode reads a JSON body into v. Members that v does not know are ignored, so
// that a newer client can talk to an older server.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxDefinition))
	if err != nil {
		return bodyError(err, maxDefinition)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return &fault.Error{Class: fault.Invalid, Op: "read the request", Err: err}
	}
	return nil
}

// bodyError says why a request's body could not be read.
func bodyError(err error, limit int64) error {
	if _, big := errors.AsType[*http.MaxBytesError](err); big {
		return tooBig(limit)
	}
	return &fault.Error{Class: fault.Cancelled, Op: "read the request", Err: err}
}

func tooBig(limit int64) error {
	return fault.New(fault.Invalid, "the request's body is larger than the limit of %s", size(limit)).
		WithHint("Put big data into the image or fetch it inside the function, and pass its name.")
}

// size writes a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return strconv.FormatInt(n>>30, 10) + " GiB"
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// limit reads the query's limit, at most most.
func limit(r *http.Request, normal, most int) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return normal, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fault.New(fault.Invalid, "limit=%s: want 1 to %d", text, most)
	}
	return n, nil
}
