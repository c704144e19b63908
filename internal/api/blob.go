package api

import (
	"net/http"

	"brisk.dev/brisk/internal/fault"
)

func (s *Server) hasBlob(w http.ResponseWriter, r *http.Request) error {
	ok, err := s.backend.Blobs.Has(r.PathValue("w"), r.PathValue("ref"))
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.NotFound, "there is no blob %s", r.PathValue("ref"))
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *Server) putBlob(w http.ResponseWriter, r *http.Request) error {
	err := s.backend.Blobs.Put(r.Context(), r.PathValue("w"), r.PathValue("ref"), r.Body)
	return answer(w)(struct{}{}, err)
}
