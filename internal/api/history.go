package api

import (
	"net/http"

	"brisk.dev/brisk/internal/scheduler"
)

// How much of a history is given when no limit is named, and at most.
const (
	normalCalls, mostCalls = 50, 10_000
	normalLines, mostLines = 1000, 100_000
)

func (s *Server) calls(w http.ResponseWriter, r *http.Request) error {
	n, err := limit(r, normalCalls, mostCalls)
	if err != nil {
		return err
	}
	l, err := s.backend.History.Calls(r.Context(), r.PathValue("w"), n)
	return answer(w)(orEmpty(l), err)
}

func (s *Server) callByID(w http.ResponseWriter, r *http.Request) error {
	return answer(w)(s.backend.History.CallByID(r.Context(), r.PathValue("w"), r.PathValue("id")))
}

func (s *Server) instances(w http.ResponseWriter, r *http.Request) error {
	l, err := s.backend.History.Instances(r.Context(), r.PathValue("w"))
	return answer(w)(orEmpty(l), err)
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	n, err := limit(r, normalLines, mostLines)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	l, err := s.backend.History.Logs(r.Context(), r.PathValue("w"),
		scheduler.LogFilter{Call: q.Get("call"), Function: q.Get("function"), Limit: n})
	return answer(w)(orEmpty(l), err)
}
