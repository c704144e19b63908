package export

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/importer"
	"brisk.dev/brisk/internal/image/registry"
)

// cut reads half of what a request sends, and closes the connection.
func cut(w http.ResponseWriter, r *http.Request) {
	_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
	panic(http.ErrAbortHandler)
}

// halfThen reads half of what a request sends, and answers.
func halfThen(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		answer(status, text)(w, r)
	}
}

func answer(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, status) }
}

// TestPushToARegistryThatRefuses has a registry fail at one kind of request: always, and then so often
// that the last attempt comes through.
func TestPushToARegistryThatRefuses(t *testing.T) {
	const begin, blob, manifest = "POST /blobs/uploads/", "PUT /blobs/", "PUT /manifests/"
	for name, c := range map[string]struct {
		at     string
		answer http.HandlerFunc
		class  fault.Class
		err    string
		hint   string
		tries  int // the registry is asked so often
	}{
		"nobody may":        {begin, answer(401, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`), fault.Invalid, "write to registry HOST: it answers unauthorized: authentication required", "docker login HOST", 1},
		"not you":           {begin, answer(403, `{"errors":[{"code":"DENIED","message":"read only"}]}`), fault.Invalid, "write to registry HOST: it answers denied: read only", "docker login HOST", 1},
		"not so late":       {blob, answer(401, ""), fault.Invalid, "send a layer to registry HOST: it answers Unauthorized", "docker login HOST", 1},
		"too large":         {blob, halfThen(413, "<html>nginx</html>"), fault.Invalid, "send a layer to registry HOST: it answers Request Entity Too Large", "client_max_body_size", 1},
		"too often":         {blob, answer(429, ""), fault.Unavailable, "it answers Too Many Requests", "wait, or log in", 5},
		"fault":             {blob, answer(500, "oops"), fault.Unavailable, "it answers Internal Server Error", "try again later", 5},
		"fault midway":      {blob, halfThen(500, ""), fault.Unavailable, "send a layer to registry HOST: ", "", 5},
		"disk full":         {blob, halfThen(507, ""), fault.Unavailable, "send a layer to registry HOST: ", "", 5},
		"cut":               {blob, cut, fault.Unavailable, "send a layer to registry HOST: ", "", 5},
		"another digest":    {blob, answer(400, `{"errors":[{"code":"DIGEST_INVALID","message":"provided digest did not match uploaded content"}]}`), fault.Invalid, "it answers digest invalid: provided digest did not match uploaded content", "", 1},
		"manifest refused":  {manifest, answer(400, `{"errors":[{"code":"MANIFEST_INVALID"}]}`), fault.Invalid, "send the manifest to registry HOST: it answers manifest invalid", "", 1},
		"tag is immutable":  {manifest, answer(403, `{"errors":[{"code":"DENIED","message":"tag exists"}]}`), fault.Invalid, "it answers denied: tag exists", "docker login HOST", 1},
		"manifest is cut":   {manifest, cut, fault.Unavailable, "send the manifest to registry HOST: ", "", 5},
		"manifest, no room": {manifest, answer(503, ""), fault.Unavailable, "it answers Service Unavailable", "try again later", 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := ggcr.New(ggcr.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
			var mu sync.Mutex
			tries, heals := 0, false
			s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				method, path, _ := strings.Cut(c.at, " ")
				if r.Method == method && strings.Contains(r.URL.Path, path) {
					mu.Lock()
					tries++
					fails := !heals || tries < 5
					mu.Unlock()
					if fails {
						c.answer(rw, r)
						return
					}
				}
				inner.ServeHTTP(rw, r)
			}))
			t.Cleanup(s.Close)
			s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
			host := strings.TrimPrefix(s.URL, "http://")

			w := newWorld(t)
			img := w.make(config, file{path: "big", content: incompressible(600_000)}, file{path: "more", content: "of it"})
			_, err := w.push(img, host+"/app:1", Options{LayerBytes: 500_000})
			require.Equal(t, c.class, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, strings.ReplaceAll(c.err, "HOST", host))
			require.NotContains(t, err.Error(), "\n")
			require.Contains(t, fault.HintOf(err), strings.ReplaceAll(c.hint, "HOST", host))
			mu.Lock()
			require.Equal(t, c.tries, tries)
			heals, tries = c.tries > 1, 0
			mu.Unlock()
			left, err := os.ReadDir(w.x.TempDir)
			require.NoError(t, err)
			require.Empty(t, left)
			pull := importer.PullRequest{Ref: host + "/app:1", Workspace: "default", Auth: &registry.Auth{}}
			_, err = w.in.Pull(t.Context(), pull, nil)
			require.True(t, fault.Is(err, fault.NotFound), "no tag names half of an image: %v", err)

			if c.tries == 1 {
				return
			}
			_, err = w.push(img, host+"/app:1", Options{LayerBytes: 500_000})
			require.NoError(t, err)
			r, err := w.in.Pull(t.Context(), pull, nil)
			require.NoError(t, err)
			require.Equal(t, img.Digest, r.Digest)
		})
	}
}

// incompressible is content that stays as large as it is.
func incompressible(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
}

// Credentials are for the registry, and not for the storage that it sends uploads to.
func TestUploadsElsewhere(t *testing.T) {
	inner := ggcr.New(ggcr.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	var mu sync.Mutex
	elsewhere := 0
	storage := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPut {
			elsewhere++
		}
		if r.Header.Get("Authorization") != "" {
			http.Error(rw, "that is not for me", http.StatusTeapot)
			return
		}
		inner.ServeHTTP(rw, r)
	}))
	t.Cleanup(storage.Close)
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ada" || password != "engine" {
			rw.Header().Set("WWW-Authenticate", `Basic realm="tests"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodPost {
			rec := httptest.NewRecorder()
			inner.ServeHTTP(rec, r)
			rw.Header().Set("Location", storage.URL+rec.Header().Get("Location"))
			rw.WriteHeader(rec.Code)
			return
		}
		inner.ServeHTTP(rw, r)
	}))
	t.Cleanup(front.Close)
	w := newWorld(t)
	img := w.make(config, nasty()...)
	ref, err := registry.ParseRef(strings.TrimPrefix(front.URL, "http://")+"/app:1", false)
	require.NoError(t, err)
	repo, err := w.in.Client.Open(t.Context(), ref, registry.Auth{Username: "ada", Password: "engine"}, registry.Push)
	require.NoError(t, err)
	defer repo.Close()
	_, err = w.x.Push(t.Context(), img, repo, Options{}, nil)
	require.NoError(t, err)
	require.Equal(t, 2, elsewhere, "a layer and the configuration")
}
