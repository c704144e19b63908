package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/api/blobs"
	"brisk.dev/brisk/internal/image/build"
	"brisk.dev/brisk/internal/image/importer"
	"brisk.dev/brisk/internal/store"
)

// Build passes a definition and what is said about its steps between the API and
// the builder. A client that has gone needs no look here: it ends ctx.
func (a *imageAPI) Build(ctx context.Context, workspace string, definition json.RawMessage, p api.BuildSink) (store.Digest, error) {
	def, err := build.ParseDefinition(bytes.NewReader(definition))
	if err != nil {
		return store.Digest{}, err
	}
	img, err := a.builder.Build(ctx, workspace, def, func(e build.Event) {
		switch e.Kind {
		case build.StepBegins:
			_ = p.Step(e.Index, e.Total, e.Text, e.Cached)
		case build.Output:
			_ = p.Log(e.Log)
		case build.Progress:
			_ = p.Progress(e.Text)
		}
	})
	if err != nil {
		return store.Digest{}, err
	}
	return img.Digest, nil
}

// openBlob opens an upload for a step that adds it.
func openBlob(s *blobs.Store) func(ctx context.Context, workspace, id string) (io.ReadCloser, error) {
	return func(_ context.Context, workspace, id string) (io.ReadCloser, error) {
		f, err := s.Open(workspace, id)
		if err != nil {
			return nil, err // not a nil *os.File in an interface
		}
		return f, nil
	}
}

// containers lets the builder begin with container images.
type containers struct{ importer *importer.Importer }

func (c containers) Pull(ctx context.Context, workspace string, from build.Remote, progress func(done, total int64)) (store.Digest, string, error) {
	r, err := c.importer.Pull(ctx, importer.PullRequest{Ref: from.Ref, Workspace: workspace, Insecure: from.Insecure, Auth: from.Auth}, progress)
	return r.Digest, r.Source, err
}

func (c containers) Import(ctx context.Context, workspace, path string, progress func(done, total int64)) (store.Digest, error) {
	r, err := c.importer.Import(ctx, importer.Request{Path: path, Workspace: workspace}, progress)
	return r.Digest, err
}
