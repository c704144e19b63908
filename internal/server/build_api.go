package server

import (
	"context"
	"encoding/json"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Build is not wired yet.
func (a *imageAPI) Build(context.Context, string, json.RawMessage, api.BuildSink) (store.Digest, error) {
	return store.Digest{}, fault.New(fault.Unavailable, "this server builds no images yet")
}
