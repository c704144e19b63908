package cluster

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// beatTime is short: tests wait for several beats. A node may miss many of them,
// since a busy machine may not run it for that long.
const beatTime = 20 * time.Millisecond

// soon is how long tests wait for what takes some beats, on a busy machine.
const soon = 20 * time.Second

// memoryKeys are keys in memory. made counts what Make had to make.
type memoryKeys struct {
	mu   sync.Mutex
	keys map[string]string
}

func (k *memoryKeys) Export() (map[string]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.keys), nil
}

func (k *memoryKeys) Import(keys map[string]string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = map[string]string{}
	}
	maps.Copy(k.keys, keys)
	return nil
}

func (k *memoryKeys) Make(workspace string) error {
	k.mu.Lock()
	_, have := k.keys[workspace]
	k.mu.Unlock()
	if have {
		return nil
	}
	return k.Import(map[string]string{workspace: "key of " + workspace})
}

func options(dir, name string) Options {
	return Options{
		Dir: dir, Name: name, Listen: "127.0.0.1:0", Beat: beatTime, Misses: 50, Version: "test",
		Log: slog.New(slog.DiscardHandler), Keys: &memoryKeys{},
	}
}

// run opens and starts, until the test ends.
func run(t *testing.T, o Options, before ...func(c *Cluster)) *Cluster {
	t.Helper()
	c, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	c.Handle("GET /v1/whoami", func(w http.ResponseWriter, _ *http.Request, from string) {
		_, _ = w.Write([]byte(from + " at " + c.Self()))
	})
	for _, f := range before {
		f(c)
	}
	c.Start()
	return c
}

func runControl(t *testing.T) *Cluster {
	t.Helper()
	return run(t, options(t.TempDir(), "c"))
}

func token(t *testing.T, c *Cluster, o TokenOptions) Token {
	t.Helper()
	tok, err := c.NewToken(o)
	require.NoError(t, err)
	return tok
}

// join makes a directory a node's.
func join(t *testing.T, c *Cluster, name string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	_, err := Join(t.Context(), JoinOptions{Dir: dir, Name: name, Token: token(t, c, TokenOptions{})})
	require.NoError(t, err)
	return dir
}

func runNode(t *testing.T, c *Cluster, name string) *Cluster {
	t.Helper()
	return run(t, options(join(t, c, name), ""))
}

// names are the live ones that a machine knows.
func names(c *Cluster) []string {
	var l []string
	for _, m := range c.Members() {
		l = append(l, m.Name)
	}
	slices.Sort(l)
	return l
}

func requireSees(t *testing.T, c *Cluster, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return slices.Equal(names(c), want) }, soon, beatTime/4, "%s sees %v", c.Self(), names(c))
}

// whoami asks a member over a new connection.
func whoami(ctx context.Context, c *Cluster, name string) (string, error) {
	conn, err := c.Dial(ctx, name)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	h, err := overHTTP(ctx, conn)
	if err != nil {
		return "", err
	}
	defer h.Close()
	return get(ctx, h, "/v1/whoami")
}

func get(ctx context.Context, h *http.ClientConn, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://control"+path, nil)
	if err != nil {
		return "", err
	}
	res, err := h.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", readAnswer(res, &nothing{})
	}
	b := make([]byte, 100)
	n, _ := res.Body.Read(b)
	return string(b[:n]), nil
}

func requireClass(t *testing.T, want fault.Class, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, fault.ClassOf(err), "%v", err)
}
