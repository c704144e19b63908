package importer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	ggcrremote "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/layers"
	"brisk.dev/brisk/internal/image/registry"
)

// hub is a registry that tests can disturb.
type hub struct {
	t    *testing.T
	host string

	mu    sync.Mutex
	blobs []string // digests of the blobs that were read, in the order of the requests
	// disturb, if set, may answer a request itself.
	disturb func(w http.ResponseWriter, r *http.Request) (answered bool)
}

func newHub(t *testing.T) *hub {
	h := &hub{t: t}
	inner := ggcr.New(ggcr.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		if _, digest, is := strings.Cut(r.URL.Path, "/blobs/"); is && r.Method == http.MethodGet {
			h.blobs = append(h.blobs, digest)
		}
		disturb := h.disturb
		h.mu.Unlock()
		if disturb == nil || !disturb(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	h.host = strings.TrimPrefix(s.URL, "http://")
	return h
}

func (h *hub) set(disturb func(w http.ResponseWriter, r *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.disturb = disturb
}

// read gives the blobs that were read since the last call.
func (h *hub) read() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.blobs
	h.blobs = nil
	slices.Sort(l)
	return l
}

// push puts an image or index into the registry and gives its reference.
func (h *hub) push(tag string, what ggcrremote.Taggable) string {
	h.t.Helper()
	ref := h.host + "/" + tag
	parsed, err := name.ParseReference(ref)
	require.NoError(h.t, err)
	switch w := what.(type) {
	case v1.Image:
		require.NoError(h.t, ggcrremote.Write(parsed, w))
	case v1.ImageIndex:
		require.NoError(h.t, ggcrremote.WriteIndex(parsed, w))
	}
	return ref
}

func (b *bench) pull(ref string) (Report, error) {
	return b.Pull(b.t.Context(), PullRequest{Ref: ref, Workspace: "default", Name: "test", Auth: &registry.Auth{}}, nil)
}

func withLayers(b *bench) *bench {
	var err error
	b.Layers, err = layers.Open(b.dir+"/layers", layers.DefaultLimit)
	require.NoError(b.t, err)
	b.Client = registry.Client{Stall: 5 * time.Second, Pause: time.Millisecond}
	return b
}

func digests(t *testing.T, l ...v1.Layer) (out []string) {
	for _, layer := range l {
		out = append(out, must(layer.Digest()).String())
	}
	slices.Sort(out)
	return out
}

func TestPullGivesTheSameImageAsImport(t *testing.T) {
	img, want := layered(t)
	h, b := newHub(t), withLayers(newBench(t))
	imported, _ := newBench(t).ok(writeLayout(t, img))
	r, err := b.pull(h.push("app:1", img))
	require.NoError(t, err)
	require.Equal(t, want, b.list(b.tree("test")))
	require.Equal(t, imported.Digest, r.Digest)
	require.Equal(t, Registry, r.Kind)
	require.Equal(t, h.host+"/app@"+must(img.Digest()).String(), r.Source)

	for _, ref := range []string{h.host + "/app:1", r.Source} {
		h.read()
		again, err := b.pull(ref)
		require.NoError(t, err)
		require.Equal(t, r.Digest, again.Digest)
		require.Zero(t, again.NewChunks)
		require.LessOrEqual(t, len(h.read()), 1, "at most the configuration")
	}
	h.set(func(w http.ResponseWriter, _ *http.Request) bool {
		t.Error("nobody has to be asked what a digest means")
		return false
	})
	_, err = b.pull(r.Source)
	require.NoError(t, err)
}

func TestPullFetchesOnlyLayersThatAreNew(t *testing.T) {
	h, b := newHub(t), withLayers(newBench(t))
	base := layerOf(t, entry{name: "base/"}, entry{name: "base/f", data: "base"})
	one := layerOf(t, entry{name: "app", data: "one"}, entry{name: "base/.wh.f"})
	two := layerOf(t, entry{name: "app", data: "two"})
	blank := layerOf(t)
	config := func(img v1.Image) string { return must(img.ConfigName()).String() }

	first := imageOf(t, base, blank, one, blank)
	r, err := b.pull(h.push("app:1", first))
	require.NoError(t, err)
	require.Equal(t, 3, r.Layers, "the empty layer counts once")
	require.Zero(t, r.KnownLayers)
	want := append(digests(t, base, one, blank), config(first))
	slices.Sort(want)
	require.Equal(t, want, h.read())

	second := imageOf(t, base, two)
	r, err = b.pull(h.push("app:2", second))
	require.NoError(t, err)
	require.Equal(t, []any{2, 1}, []any{r.Layers, r.KnownLayers})
	want = append(digests(t, two), config(second))
	slices.Sort(want)
	require.Equal(t, want, h.read())
	require.Equal(t, []string{"/ 755", `/app 644 "two"`, "/base/ 755", `/base/f 644 "base"`}, b.list(b.tree("test")))

	// On another base, and read from an archive, it is still the same layer.
	third := imageOf(t, one, base)
	imported, err := b.do(writeLayout(t, third))
	require.NoError(t, err)
	require.Equal(t, []any{2, 2, int64(0)}, []any{imported.Layers, imported.KnownLayers, imported.NewChunks})

	// When the content has gone, what is known of the layer counts for nothing.
	require.NoError(t, b.Images.Remove(t.Context(), image.Ref{Workspace: "default", Name: "test"}))
	for _, n := range must(b.Images.List(t.Context(), "default")) {
		require.NoError(t, b.Images.Remove(t.Context(), image.Ref{Workspace: "default", Name: n.Digest.String()}))
	}
	h.read()
	r, err = b.pull(h.host + "/app:2")
	require.NoError(t, err)
	require.Zero(t, r.KnownLayers)
	require.Contains(t, h.read(), must(base.Digest()).String())
	require.Equal(t, []string{"/ 755", `/app 644 "two"`, "/base/ 755", `/base/f 644 "base"`}, b.list(b.tree("test")))
}

func TestPullChoosesThePlatform(t *testing.T) {
	img, want := layered(t)
	other := imageOf(t, layerOf(t, entry{name: "arm"}))
	add := func(arch string, i v1.Image) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: i, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}}
	}
	h, b := newHub(t), withLayers(newBench(t))
	inner := mutate.AppendManifests(empty.Index, add("arm64", other), add("amd64", img))
	_, err := b.pull(h.push("multi:1", inner))
	require.NoError(t, err)
	require.Equal(t, want, b.list(b.tree("test")))
	nested := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.DockerManifestList), mutate.IndexAddendum{Add: inner})
	_, err = b.pull(h.push("multi:2", nested))
	require.NoError(t, err)
	require.Equal(t, want, b.list(b.tree("test")))
	_, err = b.pull(h.push("multi:3", mutate.AppendManifests(empty.Index, add("arm64", other))))
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
	require.ErrorContains(t, err, "the image is for linux/arm64, and this machine runs linux/amd64")
}

func TestPullReadsEveryKindOfLayer(t *testing.T) {
	tarred := makeTar(t, entry{name: "f", data: "content"})
	h := newHub(t)
	for name, c := range map[string]struct {
		b    []byte
		kind types.MediaType
	}{
		"gzip":           {gzipped(t, tarred), types.OCILayer},
		"zstd":           {zstded(t, tarred), types.OCILayerZStd},
		"plain":          {tarred, types.OCIUncompressedLayer},
		"docker":         {gzipped(t, tarred), types.DockerLayer},
		"the wrong kind": {zstded(t, tarred), types.OCILayer},
	} {
		t.Run(name, func(t *testing.T) {
			b := withLayers(newBench(t))
			b.t = t
			img := imageOf(t, staticLayer{static.NewLayer(c.b, c.kind), tarred})
			_, err := b.pull(h.push("kinds:"+strings.ReplaceAll(name, " ", "-"), img))
			require.NoError(t, err)
			require.Equal(t, []string{"/ 755", `/f 644 "content"`}, b.list(b.tree("test")))
		})
	}
}

// staticLayer is bytes as they are stored, with the digest of the tar in them.
type staticLayer struct {
	v1.Layer
	tarred []byte
}

func (l staticLayer) DiffID() (v1.Hash, error) {
	h, _, err := v1.SHA256(strings.NewReader(string(l.tarred)))
	return h, err
}

// TestPullSurvivesABadConnection has every blob arrive in pieces.
func TestPullSurvivesABadConnection(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 40_000)
	img := imageOf(t, layerOfBytes(t, makeTar(t, entry{name: "big", data: big})))
	for name, ranges := range map[string]bool{"with ranges": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			h, b := newHub(t), withLayers(newBench(t))
			ref := h.push("app:1", img)
			layer := must(must(img.Layers())[0].Digest()).String()
			content := must(io.ReadAll(must(must(img.Layers())[0].Compressed())))
			cuts := 0
			h.set(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, layer) || r.Method != http.MethodGet {
					return false
				}
				from := 0
				if spec := r.Header.Get("Range"); spec != "" && ranges {
					_, err := fmt.Sscanf(spec, "bytes=%d-", &from)
					require.NoError(t, err)
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(content)-1, len(content)))
					w.Header().Set("Content-Length", strconv.Itoa(len(content)-from))
					w.WriteHeader(http.StatusPartialContent)
				} else {
					w.Header().Set("Content-Length", strconv.Itoa(len(content)))
				}
				cuts++
				end := min(len(content), cuts*len(content)/4+1)
				if end > from {
					w.Write(content[from:end])
				}
				if end < len(content) {
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler) // the connection breaks
				}
				return true
			})
			_, err := b.pull(ref)
			require.NoError(t, err)
			require.Equal(t, 4, cuts)
			require.Equal(t, big, b.content(must(b.tree("test").Lookup("/big"))))
		})
	}
}

func TestPullFromARegistryThatLies(t *testing.T) {
	img := imageOf(t, layerOfBytes(t, makeTar(t, entry{name: "f", data: strings.Repeat("content ", 10_000)})), layerOf(t, entry{name: "g", data: "g"}))
	layer := must(must(img.Layers())[0].Digest())
	content := must(io.ReadAll(must(must(img.Layers())[0].Compressed())))
	other := must(io.ReadAll(must(must(img.Layers())[1].Compressed())))
	manifest := must(img.RawManifest())
	body := func(w http.ResponseWriter, b []byte) bool { w.Write(b); return true }
	ofLayer := func(answer func(w http.ResponseWriter, r *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, layer.String()) && r.Method == http.MethodGet && answer(w, r)
		}
	}
	ofManifest := func(change func(m map[string]any)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			var m map[string]any
			require.NoError(t, json.Unmarshal(manifest, &m))
			change(m)
			w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
			require.NoError(t, json.NewEncoder(w).Encode(m))
			return true
		}
	}
	first := func(m map[string]any) map[string]any { return m["layers"].([]any)[0].(map[string]any) }

	for name, c := range map[string]struct {
		disturb func(w http.ResponseWriter, r *http.Request) bool
		class   fault.Class
		err     string
	}{
		"no such image": {func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/manifests/") {
				http.NotFound(w, r)
				return true
			}
			return false
		}, fault.NotFound, "it answers Not Found"},
		"an empty answer": {ofLayer(func(w http.ResponseWriter, _ *http.Request) bool { return body(w, nil) }), fault.Corrupt, "should have"},
		"an empty answer of unknown length": {ofLayer(func(w http.ResponseWriter, _ *http.Request) bool {
			w.(http.Flusher).Flush()
			return true
		}), fault.Unavailable, "it sent 0 bytes"},
		"cut off": {ofLayer(func(w http.ResponseWriter, _ *http.Request) bool {
			w.(http.Flusher).Flush()
			return body(w, content[:100])
		}), fault.Unavailable, "it sent 100 bytes"},
		"twice": {ofLayer(func(w http.ResponseWriter, _ *http.Request) bool {
			w.(http.Flusher).Flush()
			return body(w, append(slices.Clone(content), content...))
		}), fault.Corrupt, "is longer than"},
		"another layer": {ofLayer(func(w http.ResponseWriter, _ *http.Request) bool { return body(w, other) }), fault.Corrupt, "should have"},
		"other bytes of the same length": {ofLayer(func(w http.ResponseWriter, _ *http.Request) bool {
			b := slices.Clone(content)
			slices.Reverse(b)
			return body(w, b)
		}), fault.Corrupt, "its content should have the digest " + layer.String()},
		"a flipped bit": {ofLayer(func(w http.ResponseWriter, _ *http.Request) bool {
			b := slices.Clone(content)
			b[len(b)/2] ^= 4
			return body(w, b)
		}), fault.Corrupt, "its content should have the digest " + layer.String()},
		"another range": {ofLayer(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Range") == "" {
				w.(http.Flusher).Flush()
				return body(w, content[:100])
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(content)-1, len(content)))
			w.WriteHeader(http.StatusPartialContent)
			return body(w, content)
		}), fault.Corrupt, "when asked for the bytes"},
		"no such layer": {ofLayer(func(w http.ResponseWriter, r *http.Request) bool { http.NotFound(w, r); return true }), fault.NotFound, "it answers Not Found"},
		"always failing": {ofLayer(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}), fault.Unavailable, "it answers Service Unavailable"},
		"manifest is no JSON": {func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, "/manifests/") && body(w, []byte("<html>"))
		}, fault.Corrupt, "does not read"},
		"endless manifest": {func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, "/manifests/") && body(w, make([]byte, 9<<20))
		}, fault.Invalid, "has more than 8388608 bytes"},
		"size of 2^63-1":          {ofManifest(func(m map[string]any) { first(m)["size"] = int64(1<<63 - 1) }), fault.Invalid, "which cannot be"},
		"a byte less":             {ofManifest(func(m map[string]any) { first(m)["size"] = len(content) - 1 }), fault.Corrupt, fmt.Sprintf("should have %d bytes and has %d", len(content)-1, len(content))},
		"a byte more":             {ofManifest(func(m map[string]any) { first(m)["size"] = len(content) + 1 }), fault.Corrupt, fmt.Sprintf("should have %d bytes and has %d", len(content)+1, len(content))},
		"negative size":           {ofManifest(func(m map[string]any) { first(m)["size"] = -1 }), fault.Invalid, "which cannot be"},
		"config of 2^62":          {ofManifest(func(m map[string]any) { m["config"].(map[string]any)["size"] = int64(1 << 62) }), fault.Invalid, "cannot be read"},
		"foreign layer":           {ofManifest(func(m map[string]any) { first(m)["mediaType"] = types.DockerForeignLayer }), fault.Invalid, "has to be fetched from elsewhere"},
		"layer with URLs":         {ofManifest(func(m map[string]any) { first(m)["urls"] = []string{"http://169.254.169.254/"} }), fault.Invalid, "has to be fetched from elsewhere"},
		"encrypted":               {ofManifest(func(m map[string]any) { first(m)["mediaType"] = "application/vnd.oci.image.layer.v1.tar+encrypted" }), fault.Invalid, "is encrypted"},
		"sha512":                  {ofManifest(func(m map[string]any) { first(m)["digest"] = "sha512:" + strings.Repeat("0", 128) }), fault.Invalid, "is not a SHA-256"},
		"a layer less":            {ofManifest(func(m map[string]any) { m["layers"] = m["layers"].([]any)[1:] }), fault.Corrupt, "its manifest lists 1 layers and its configuration 2"},
		"layers in another order": {ofManifest(func(m map[string]any) { slices.Reverse(m["layers"].([]any)) }), fault.Corrupt, "its decompressed content should have the digest"},
		"index and image":         {ofManifest(func(m map[string]any) { m["manifests"] = []any{} }), fault.Invalid, "is an index and an image at once"},
		"schema 1":                {ofManifest(func(m map[string]any) { delete(m, "config"); delete(m, "layers") }), fault.Invalid, "is of a kind that Brisk does not read"},
		"an artifact": {ofManifest(func(m map[string]any) {
			m["config"].(map[string]any)["mediaType"] = "application/vnd.cncf.helm.config.v1+json"
		}), fault.Invalid, "it is an artifact"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, b := newHub(t), withLayers(newBench(t))
			b.t = t
			ref := h.push("app:1", img)
			before := b.files()
			h.set(c.disturb)
			_, err := b.pull(ref)
			require.Error(t, err)
			require.Equal(t, c.class, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, c.err)
			require.NotContains(t, err.Error(), "\n")
			left := b.files()
			left = slices.DeleteFunc(left, func(f string) bool { return strings.HasPrefix(f, "/layers/default/") }) // a good layer's list may stay
			require.ElementsMatch(t, before, left)
			h.set(nil)
			_, err = b.pull(ref)
			require.NoError(t, err, "and afterwards nothing is spoilt")
		})
	}
}

// TestIndexesInCircles has a registry whose index contains another, and so on for ever.
func TestIndexesInCircles(t *testing.T) {
	h, b := newHub(t), withLayers(newBench(t))
	inner := v1.ImageIndex(empty.Index)
	for range 8 {
		inner = mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: inner})
	}
	_, err := b.pull(h.push("deep:1", inner))
	require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "nested more than 4 deep")
}

// TestIndexesThatMultiply has indexes that name each other so often that nobody can follow all of it.
func TestIndexesThatMultiply(t *testing.T) {
	for name, c := range map[string]struct {
		levels, width int
		distinct      bool
		err           string
		read          int // manifests
	}{
		"the same":  {4, 40, false, "it names more than 10000 images", 5},
		"different": {1, 200, true, "it has more than 100 indexes within indexes", 101},
	} {
		t.Run(name, func(t *testing.T) {
			h, b := newHub(t), withLayers(newBench(t))
			b.t = t
			documents := map[string][]byte{}
			put := func(raw []byte) v1.Descriptor {
				d, size, err := v1.SHA256(strings.NewReader(string(raw)))
				require.NoError(t, err)
				documents[d.String()] = raw
				return v1.Descriptor{MediaType: types.OCIImageIndex, Digest: d, Size: size}
			}
			index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
			one := put([]byte("an image that is never read"))
			one.MediaType = types.OCIManifestSchema1
			index.Manifests = []v1.Descriptor{one}
			for range c.levels {
				outer := index
				outer.Manifests = nil
				for i := range c.width {
					if c.distinct {
						index.Annotations = map[string]string{"number": strconv.Itoa(i)}
					}
					outer.Manifests = append(outer.Manifests, put(must(json.Marshal(index))))
				}
				index = outer
			}
			top := must(json.Marshal(index))
			read := 0
			h.set(func(w http.ResponseWriter, r *http.Request) bool {
				_, identifier, is := strings.Cut(r.URL.Path, "/manifests/")
				if !is {
					return false
				}
				read++
				w.Header().Set("Content-Type", string(types.OCIImageIndex))
				if raw, ok := documents[identifier]; ok {
					w.Write(raw)
				} else {
					w.Write(top)
				}
				return true
			})
			before := b.files()
			_, err := b.pull(h.host + "/app:1")
			require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, c.err)
			require.Equal(t, c.read, read)
			require.Equal(t, before, b.files())
		})
	}
}

func TestThousandsOfLayers(t *testing.T) {
	img := imageOf(t, layerOf(t, entry{name: "f", data: "x"}))
	h, b := newHub(t), withLayers(newBench(t))
	ref := h.push("app:1", img)
	many := func(n int) func(w http.ResponseWriter, r *http.Request) bool {
		config, manifest := must(img.ConfigFile()).DeepCopy(), must(img.Manifest()).DeepCopy()
		for range n - 1 {
			config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, config.RootFS.DiffIDs[0])
			manifest.Layers = append(manifest.Layers, manifest.Layers[0])
		}
		raw := must(json.Marshal(config))
		manifest.Config.Digest, manifest.Config.Size, _ = v1.SHA256(bytes.NewReader(raw))
		return func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case strings.Contains(r.URL.Path, "/manifests/"):
				w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
				require.NoError(t, json.NewEncoder(w).Encode(manifest))
			case strings.HasSuffix(r.URL.Path, manifest.Config.Digest.String()):
				w.Write(raw)
			default:
				return false
			}
			return true
		}
	}
	h.set(many(maxLayers))
	_, err := b.pull(ref)
	require.NoError(t, err)
	require.Equal(t, []string{"/ 755", `/f 644 "x"`}, b.list(b.tree("test")))
	before := b.files()
	h.set(many(maxLayers + 1))
	_, err = b.pull(ref)
	require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "it has 1001 layers, and more than 1000 cannot be read")
	require.Equal(t, before, b.files())
}

// A layer that is small until it is decompressed costs nothing.
func TestALayerThatExplodes(t *testing.T) {
	h, b := newHub(t), withLayers(newBench(t))
	const size = 16 << 20
	var stored bytes.Buffer
	gz, plain := gzip.NewWriter(&stored), sha256.New()
	tw := tar.NewWriter(io.MultiWriter(gz, plain))
	require.NoError(t, tw.WriteHeader(&tar.Header{Name: "zeros", Size: size, Mode: 0o644}))
	must(io.CopyN(tw, zeroReader{}, size))
	require.NoError(t, tw.Close())
	require.NoError(t, gz.Close())
	require.Less(t, stored.Len(), 100_000)
	r, err := b.pull(h.push("app:zeros", imageOf(t, sumLayer{static.NewLayer(stored.Bytes(), types.OCILayer), sum(plain)})))
	require.NoError(t, err)
	require.Equal(t, []int64{size, 0}, []int64{r.Bytes, r.NewBytes})
}

// sumLayer is a layer whose plain digest is known.
type sumLayer struct {
	v1.Layer
	diffID v1.Hash
}

func (l sumLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }

func TestPullIsCancelled(t *testing.T) {
	img, _ := layered(t)
	h, b := newHub(t), withLayers(newBench(t))
	ref := h.push("app:1", img)
	ctx, cancel := context.WithCancel(t.Context())
	h.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			cancel()
			<-r.Context().Done()
			return true
		}
		return false
	})
	before := b.files()
	_, err := b.Pull(ctx, PullRequest{Ref: ref, Workspace: "default", Auth: &registry.Auth{}}, nil)
	require.Equal(t, fault.Cancelled, fault.ClassOf(err), "%v", err)
	require.Equal(t, before, b.files())
}

func TestASilentRegistryIsGivenUp(t *testing.T) {
	img, _ := layered(t)
	h, b := newHub(t), withLayers(newBench(t))
	b.Client.Stall = 50 * time.Millisecond
	ref := h.push("app:1", img)
	layer := must(must(img.Layers())[0].Digest()).String()
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, layer) {
			return false
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done() // the client has hung up
		return true
	})
	_, err := b.pull(ref)
	require.Equal(t, fault.Unavailable, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "it was silent for 50ms")
}

func TestReferences(t *testing.T) {
	b := newBench(t)
	for ref, want := range map[string]string{
		"":                          "is not the name of an image in a registry",
		"UPPER/case":                "is not the name of an image in a registry",
		"host/app@sha256:abc":       "is not the name of an image in a registry",
		"http://localhost:5000/app": "is not the name of an image in a registry",
		"nowhere.invalid/app":       "speak to registry nowhere.invalid",
		"127.0.0.1:1/app":           "speak to registry 127.0.0.1:1",
		"localhost:1/" + strings.Repeat("a/", 200) + "b": "is not the name of an image in a registry",
	} {
		_, err := b.pull(ref)
		require.ErrorContains(t, err, want, ref)
		require.Contains(t, []fault.Class{fault.Invalid, fault.Unavailable}, fault.ClassOf(err))
		require.NotEmpty(t, fault.HintOf(err)+"x")
	}
}

// guard lets only those into the registry who know the secret, by basic
// authentication or by a token of a server of its own.
func (h *hub) guard(kind string) {
	const user, password, token = "ada", "engine", "a-token"
	good := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		got := r.Header.Get("Authorization")
		switch {
		case r.URL.Path == "/token":
			if got != good || r.URL.Query().Get("service") != "tests" || !strings.HasPrefix(r.URL.Query().Get("scope"), "repository:app:") {
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
			fmt.Fprintf(w, `{"token":%q}`, token)
			return true
		case kind == "basic" && got == good, kind == "bearer" && got == "Bearer "+token:
			return false
		case kind == "basic":
			w.Header().Set("WWW-Authenticate", `Basic realm="tests"`)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="tests"`, h.host))
		}
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

func TestPullAuthenticates(t *testing.T) {
	img, want := layered(t)
	for _, kind := range []string{"basic", "bearer"} {
		t.Run(kind, func(t *testing.T) {
			h, b := newHub(t), withLayers(newBench(t))
			b.t = t
			ref := h.push("app:1", img)
			h.guard(kind)
			for _, auth := range []registry.Auth{{}, {Username: "ada", Password: "wrong"}} {
				_, err := b.Pull(t.Context(), PullRequest{Ref: ref, Workspace: "default", Auth: &auth}, nil)
				require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
				require.ErrorContains(t, err, "registry "+h.host+": it answers Unauthorized")
				require.Contains(t, fault.HintOf(err), "docker login "+h.host)
				require.NotContains(t, err.Error(), "wrong")
			}
			_, err := b.Pull(t.Context(), PullRequest{Ref: ref, Workspace: "default", Name: "test", Auth: &registry.Auth{Username: "ada", Password: "engine"}}, nil)
			require.NoError(t, err)
			require.Equal(t, want, b.list(b.tree("test")))
		})
	}
}
