package api

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

func (s *Server) build(w http.ResponseWriter, r *http.Request) error {
	var definition json.RawMessage
	if err := decode(w, r, &definition); err != nil {
		return err
	}
	out := stream{w: w}
	var d store.Digest
	err := s.long(r, func(ctx context.Context) (err error) {
		d, err = s.backend.Builder.Build(ctx, r.PathValue("w"), definition, buildStream{&out})
		return err
	})
	if err != nil {
		out.fail(err)
		return nil
	}
	_ = out.send(builtFrame{"done", d}, nil)
	return nil
}

// ImportRequest asks for an import of a path on the server's machine.
type ImportRequest struct {
	Path string `json:"path"`
	Tag  string `json:"tag,omitempty"` // of an archive of several images: the one that is meant
	Name string `json:"name"`
}

// progressEvery keeps an import of many small files from being mostly frames.
const progressEvery = 100 * time.Millisecond

func (s *Server) importImage(w http.ResponseWriter, r *http.Request) error {
	var q ImportRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if !filepath.IsAbs(q.Path) {
		return fault.New(fault.Invalid, "path %q is not absolute", q.Path)
	}
	if q.Name == "" {
		return fault.New(fault.Invalid, "an import needs a name")
	}
	return s.reporting(w, r, func(ctx context.Context, _ *stream, progress func(done, total int64)) (any, error) {
		res, err := s.backend.Importer.Import(ctx, r.PathValue("w"), q, progress)
		return importedFrame{"done", res}, err
	})
}

func (s *Server) listImages(w http.ResponseWriter, r *http.Request) error {
	l, err := s.backend.Images.List(r.Context(), r.PathValue("w"))
	return answer(w)(orEmpty(l), err)
}

func (s *Server) inspectImage(w http.ResponseWriter, r *http.Request) error {
	return answer(w)(s.backend.Images.Inspect(r.Context(), refOf(r)))
}

func (s *Server) removeImage(w http.ResponseWriter, r *http.Request) error {
	return answer(w)(struct{}{}, s.backend.Images.Remove(r.Context(), refOf(r)))
}

func refOf(r *http.Request) image.Ref {
	return image.Ref{Workspace: r.PathValue("w"), Name: r.PathValue("ref")}
}

// orEmpty makes an empty list [] in JSON, not null.
func orEmpty[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
