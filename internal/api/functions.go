package api

import (
	"bytes"
	"io"
	"net/http"

	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
)

func (s *Server) register(w http.ResponseWriter, r *http.Request) error {
	var f function.Function
	if err := decode(w, r, &f); err != nil {
		return err
	}
	f.Workspace = r.PathValue("w")
	d, err := s.backend.Functions.Register(r.Context(), f)
	return answer(w)(registered{d}, err)
}

type registered struct {
	Function store.Digest `json:"function"`
}

func (s *Server) call(w http.ResponseWriter, r *http.Request) error {
	d, err := store.ParseDigest(r.PathValue("digest"))
	if err != nil {
		return err
	}
	input, err := readInput(r, s.opts.MaxInput)
	if err != nil {
		return err
	}
	out := recorder{stream: stream{w: w}}
	o := s.backend.Functions.Call(r.Context(), scheduler.CallRequest{
		Workspace: r.PathValue("w"),
		App:       r.Header.Get("Brisk-App"),
		Function:  d,
		Input:     input,
	}, &out)
	switch o.Kind {
	case scheduler.Returned:
		_ = out.send(resultFrame{"result", out.call, o.MS, len(o.Payload)}, o.Payload)
	case scheduler.Raised:
		_ = out.send(exceptionFrame{"exception", out.call, o.MS, o.Exception, len(o.Payload)}, o.Payload)
	default:
		if !out.began {
			return o.Err
		}
		_ = out.send(errorFrame{"failed", out.call, recordOf(o.Err)}, nil)
	}
	return nil
}

// recorder is a stream that remembers its call's ID for the last frame.
type recorder struct {
	stream
	call string
}

func (r *recorder) Accepted(call string) error {
	r.call = call
	return r.stream.Accepted(call)
}

// readInput reads a call's input into one buffer, of the right size where the
// client says how much comes.
func readInput(r *http.Request, most int64) ([]byte, error) {
	if r.ContentLength > most {
		return nil, tooBig(most)
	}
	if r.ContentLength >= 0 && r.ContentLength <= 1<<20 {
		b := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, b); err != nil {
			return nil, bodyError(err, most)
		}
		return b, nil
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, bodyError(err, most)
	}
	if n > most {
		return nil, tooBig(most)
	}
	return b.Bytes(), nil
}
