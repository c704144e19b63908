package e2e

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
)

// An image leaves as an archive and through a registry, and comes back the same.
func TestImagesLeaveAndComeBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	program, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	probe := file("probe", string(program))
	probe.Mode = 0o4755
	path := s.write(t, "first.tar", string(archive(t, probe, file("data", strings.Repeat("brisk ", 50_000)), file("conf", "one"))))
	var first, back imported
	s.ask(t, &first, "image", "import", path, "--name", "first")

	out := filepath.Join(s.files, "out.tar")
	require.Contains(t, s.ok(t, "image", "export", "first", out), "exported first to "+out)
	s.ask(t, &back, "image", "import", out, "--name", "back")
	require.Equal(t, first.Digest, back.Digest)
	require.Zero(t, back.NewChunks)
	again := filepath.Join(s.files, "again.tar")
	s.ok(t, "image", "export", "back", again)
	a, err := os.ReadFile(out)
	require.NoError(t, err)
	b, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, len(a), len(b))

	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/team/app:1"
	require.Contains(t, s.ok(t, "image", "push", "first", ref), "pushed first to "+ref)
	var pushed struct {
		Sent    int64 `json:"sent"`
		Present int   `json:"present"`
	}
	s.ask(t, &pushed, "image", "push", "first", ref)
	require.Zero(t, pushed.Sent)
	require.NotZero(t, pushed.Present)
	var pulled imported
	s.ask(t, &pulled, "image", "pull", ref, "--name", "pulled")
	require.Equal(t, first.Digest, pulled.Digest)
	require.Equal(t, "hello", s.ok(t, "run", "--image", "pulled", "--block-network", "--", "/probe", "echo", "hello"))

	second := s.write(t, "second.tar", string(archive(t, probe, file("data", strings.Repeat("brisk ", 50_000)), file("conf", "two"), file("more", "m"))))
	s.ok(t, "image", "import", second, "--name", "second")
	text := s.ok(t, "image", "diff", "first", "second")
	require.Contains(t, text, "~ /conf (content)\n+ /more\n1 added, 0 removed, 1 changed; ")
	var d struct {
		Changes []struct{ Path, Kind string } `json:"changes"`
		Shared  int64                         `json:"shared_bytes"`
	}
	s.ask(t, &d, "image", "diff", "first", "second")
	require.Len(t, d.Changes, 2)
	require.Greater(t, d.Shared, int64(len(program)))

	require.Equal(t, "not_found", s.refused(t, 3, "image", "export", "none", out).Class)
	require.Equal(t, "not_found", s.refused(t, 3, "image", "diff", "first", "none").Class)
	require.Equal(t, "invalid", s.refused(t, 2, "image", "export", "first", out, "--compression", "lzma").Class)
	require.Equal(t, "invalid", s.refused(t, 2, "image", "push", "first", "Not A Ref").Class)
	require.Equal(t, "unavailable", s.refused(t, 7, "image", "push", "first", "127.0.0.1:1/x:1").Class)
	require.FileExists(t, out, "a failed export leaves what was there")
	left, err := filepath.Glob(filepath.Join(s.files, ".out.tar*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
