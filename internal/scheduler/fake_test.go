package scheduler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/snapshot"
	"brisk.dev/brisk/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeNode makes instances that answer in memory; its fields inject what goes wrong.
type fakeNode struct {
	mu         sync.Mutex
	alive      int // prepared and not destroyed
	prepared   int
	failStart  error
	failCall   error
	failResume error
	block      chan struct{} // if set, a call waits for it
}

func (n *fakeNode) ID() string { return "test" }

func (n *fakeNode) Prepare(_ context.Context, f *function.Function) (Instance, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.alive++
	n.prepared++
	return &fakeInstance{node: n, fn: f, name: "i-" + string(rune('a'+n.prepared-1))}, nil
}

func (n *fakeNode) StartContainer(context.Context, node.ContainerSpec, node.Sink) (*node.Container, error) {
	return nil, errors.New("not in this test")
}

func (n *fakeNode) set(f func(*fakeNode)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

func (n *fakeNode) get(f func(*fakeNode) int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return f(n)
}

type fakeInstance struct {
	node *fakeNode
	fn   *function.Function
	name string
	mu   sync.Mutex
	dead bool
	gone bool
}

func (i *fakeInstance) Name() string { return i.name }

func (i *fakeInstance) Key() snapshot.Key {
	return snapshot.Key{Workspace: i.fn.Workspace, Function: i.fn.Digest(), Image: i.fn.Image, Runtime: "fake", Features: []string{"sse"}}
}

func (i *fakeInstance) Start(_ context.Context, sink node.Sink) error {
	sink("stdout", []byte("loading\n"))
	i.node.mu.Lock()
	defer i.node.mu.Unlock()
	return i.node.failStart
}

func (i *fakeInstance) Restore(_ context.Context, s *snapshot.Snapshot) error {
	if _, err := os.Stat(filepath.Join(s.Dir, "pages")); err != nil {
		return err
	}
	i.node.mu.Lock()
	defer i.node.mu.Unlock()
	return i.node.failResume
}

func (i *fakeInstance) Checkpoint(_ context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "pages"), []byte("memory"), 0o600)
}

func (i *fakeInstance) Alive() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.dead && !i.gone
}

func (i *fakeInstance) die() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.dead = true
}

func (i *fakeInstance) Call(ctx context.Context, _ string, input []byte, sink node.Sink) (node.Reply, error) {
	i.node.mu.Lock()
	block, fail := i.node.block, i.node.failCall
	i.node.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return node.Reply{}, context.Cause(ctx)
		}
	}
	if fail != nil {
		return node.Reply{}, fail
	}
	sink("stdout", []byte("called\n"))
	return node.Reply{Payload: append([]byte("re:"), input...), MS: 1}, nil
}

func (i *fakeInstance) Reads() (image.BlockStats, int64) { return image.BlockStats{}, 0 }

func (i *fakeInstance) Destroy() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.gone {
		i.gone = true
		i.node.set(func(n *fakeNode) { n.alive-- })
	}
}

// recorder is a Sink.
type recorder struct {
	mu   sync.Mutex
	id   string
	text string
	fail error
}

func (r *recorder) Accepted(id string) error { r.id = id; return nil }

func (r *recorder) Log(_ string, p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text += string(p)
	return r.fail
}

// setup opens a scheduler on a fake node and registers one function with spec.
func setup(t *testing.T, spec function.Spec) (*Scheduler, *fakeNode, store.Digest) {
	t.Helper()
	n := &fakeNode{}
	s := open(t, t.TempDir(), n)
	return s, n, register(t, s, "mean", spec)
}

func open(t *testing.T, dir string, n *fakeNode) *Scheduler {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	snaps, err := snapshot.Open(filepath.Join(dir, "snapshots"), log)
	require.NoError(t, err)
	s, err := Open(Options{Dir: dir, Node: n, Snapshots: snaps, SDK: store.Sum([]byte("sdk")), Created: 1, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Close(ctx))
		require.Equal(t, 0, n.get(func(n *fakeNode) int { return n.alive }), "instances left after Close")
	})
	return s
}

func register(t *testing.T, s *Scheduler, qualname string, spec function.Spec) store.Digest {
	t.Helper()
	d, err := s.Register(context.Background(), function.Function{
		Workspace: "default", App: "stats", Name: "mean", Module: "stats", Qualname: qualname, Image: store.Sum([]byte("image")), Spec: spec,
	})
	require.NoError(t, err)
	return d
}

func call(s *Scheduler, d store.Digest, input string) (Outcome, CallRecord, string) {
	r := &recorder{}
	o := s.Call(context.Background(), CallRequest{Workspace: "default", Function: d, Input: []byte(input)}, r)
	rec, _ := s.CallByID(context.Background(), "default", r.id)
	return o, rec, r.text
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, 10*time.Second, 2*time.Millisecond, what)
}
