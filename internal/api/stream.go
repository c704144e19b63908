package api

import (
	"encoding/json"
	"net/http"
	"sync"

	"brisk.dev/brisk/internal/fault"
)

// stream writes frames as an HTTP response, each at once: a write blocks for as
// long as the client does not read. Frames of several goroutines do not mix.
type stream struct {
	w     http.ResponseWriter
	mu    sync.Mutex
	buf   []byte
	began bool
	err   error // the first failure to write: the client has gone
}

// direct is up to which size a payload shares its header's buffer and write.
const direct = 16 << 10

func (s *stream) send(header any, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if !s.began {
		s.began = true
		s.w.Header().Set("Content-Type", "application/x-brisk-frames")
		s.w.WriteHeader(http.StatusOK)
	}
	h, err := json.Marshal(header)
	if err != nil {
		return err
	}
	s.buf = append(append(s.buf[:0], h...), '\n')
	if len(payload) <= direct {
		s.buf, payload = append(s.buf, payload...), nil
	}
	_, err = s.w.Write(s.buf)
	if err == nil && len(payload) > 0 {
		_, err = s.w.Write(payload)
	}
	if err == nil {
		err = http.NewResponseController(s.w).Flush()
	}
	if err != nil {
		s.err = &fault.Error{Class: fault.Cancelled, Op: "answer the client", Err: err}
	}
	return s.err
}

// fail ends the stream with an error, or, if nothing has been sent, answers with it.
func (s *stream) fail(err error) {
	if !s.began {
		writeError(s.w, err)
		return
	}
	_ = s.send(errorFrame{Type: "error", Error: recordOf(err)}, nil)
}

func (s *stream) Accepted(call string) error {
	return s.send(acceptedFrame{"accepted", call}, nil)
}

func (s *stream) Log(name string, p []byte) error {
	return s.send(logFrame{"log", name, len(p)}, p)
}

// buildStream is the stream as a BuildSink, whose Log has no stream's name.
type buildStream struct{ *stream }

func (s buildStream) Step(index, total int, text string, cached bool) error {
	return s.send(stepFrame{"step", index, total, text, cached}, nil)
}

func (s buildStream) Log(p []byte) error { return s.send(logFrame{Type: "log", Len: len(p)}, p) }

func (s buildStream) Progress(text string) error { return s.send(textFrame{"progress", text}, nil) }
