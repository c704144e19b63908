// Package apitest has a backend for the API that needs no machine: functions are
// Go functions, images and history are lists. Clients of the API are tested
// against it over a real socket.
package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
)

// Fake is the whole backend. Set what a test needs; what is not set answers as
// an empty server does.
type Fake struct {
	OnCall   func(ctx context.Context, r scheduler.CallRequest, sink scheduler.Sink) scheduler.Outcome
	OnRun    func(ctx context.Context, r scheduler.ContainerRequest, stdin *os.File, sink scheduler.Sink) (scheduler.ContainerExit, error)
	OnBuild  func(ctx context.Context, definition json.RawMessage, p api.BuildSink) (store.Digest, error)
	OnImport func(ctx context.Context, q api.ImportRequest, progress func(done, total int64)) (api.ImportResult, error)

	OnPull   func(ctx context.Context, q api.PullRequest, progress func(done, total int64)) (api.ImportResult, error)
	OnPush   func(ctx context.Context, q api.PushRequest, progress func(done, total int64)) (api.ExportResult, error)
	OnExport func(ctx context.Context, q api.ExportRequest, w io.Writer, progress func(done, total int64)) (api.ExportResult, error)
	OnDiff   func(q api.DiffRequest) (*image.Difference, error)
	OnShare  func(ctx context.Context, q api.ShareRequest, progress func(done, total int64)) (api.ImportResult, error)

	OnCollect func(ctx context.Context, q api.CollectRequest, progress func(stage string, done, total int64)) (api.Collected, error)

	Checked api.StoreCheck

	MetricsText string // in the text format of Prometheus

	CallRecords     []scheduler.CallRecord
	InstanceRecords []scheduler.InstanceRecord
	LogLines        []scheduler.LogLine
	Details         []api.ImageDetail
	StoreState      api.StoreStats
	Cluster         api.NodeList

	mu         sync.Mutex
	registered []function.Function
	blobs      map[string][]byte
	filters    []scheduler.LogFilter
}

// Backend gives f every part in an API server.
func (f *Fake) Backend() api.Backend {
	return api.Backend{Functions: f, History: f, Images: f, Builder: f, Importer: f, Exchange: f, Blobs: f, Stats: f, Nodes: f, Housekeeper: f, Metrics: http.HandlerFunc(f.metrics)}
}

// Serve serves f on a unix socket until the test ends, with one workspace,
// "default". o.Info and o.Shutdown are filled in where they are zero.
func Serve(t testing.TB, f *Fake, o api.Options) (socket string) {
	t.Helper()
	// Not t.TempDir(): a socket's path has at most 107 bytes.
	dir, err := os.MkdirTemp("", "brisk-api-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "api.sock")
	ServeAt(t, socket, f, o)
	return socket
}

// ServeAt is Serve on a socket of the test's choice.
func ServeAt(t testing.TB, socket string, f *Fake, o api.Options) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if o.Info.Workspaces == nil {
		o.Info = api.Info{Version: "test", PID: os.Getpid(), Workspaces: []string{image.DefaultWorkspace}, Node: "node-1"}
	}
	if o.Shutdown == nil {
		o.Shutdown = func() {}
	}
	s := api.New(f.Backend(), o)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close the API: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("serve the API: %v", err)
		}
	})
}

// Registered gives the functions registered so far.
func (f *Fake) Registered() []function.Function {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]function.Function(nil), f.registered...)
}

// Filters gives the filters that Logs was asked with.
func (f *Fake) Filters() []scheduler.LogFilter {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]scheduler.LogFilter(nil), f.filters...)
}

// Register takes any function that is valid.
func (f *Fake) Register(_ context.Context, fn function.Function) (store.Digest, error) {
	fn.Spec.EnsureDefaults()
	if err := fn.Validate(); err != nil {
		return store.Digest{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.registered = append(f.registered, fn)
	return fn.Digest(), nil
}

// Call calls OnCall.
func (f *Fake) Call(ctx context.Context, r scheduler.CallRequest, sink scheduler.Sink) scheduler.Outcome {
	if f.OnCall == nil {
		return scheduler.Outcome{Kind: scheduler.Failed, Err: fault.New(fault.NotFound, "there is no function %s", r.Function.Short())}
	}
	return f.OnCall(ctx, r, sink)
}

// RunContainer calls OnRun.
func (f *Fake) RunContainer(ctx context.Context, r scheduler.ContainerRequest, stdin *os.File, sink scheduler.Sink) (scheduler.ContainerExit, error) {
	if f.OnRun == nil {
		return scheduler.ContainerExit{}, fault.New(fault.NotFound, "there is no image %q", r.Image)
	}
	return f.OnRun(ctx, r, stdin, sink)
}

// Calls gives the first of CallRecords.
func (f *Fake) Calls(_ context.Context, _ string, limit int) ([]scheduler.CallRecord, error) {
	return f.CallRecords[:min(limit, len(f.CallRecords))], nil
}

// CallByID finds one of CallRecords by prefix.
func (f *Fake) CallByID(_ context.Context, _, id string) (scheduler.CallRecord, error) {
	for _, r := range f.CallRecords {
		if strings.HasPrefix(r.ID, id) {
			return r, nil
		}
	}
	return scheduler.CallRecord{}, fault.New(fault.NotFound, "there is no call %q", id)
}

// Instances gives InstanceRecords.
func (f *Fake) Instances(context.Context, string) ([]scheduler.InstanceRecord, error) {
	return f.InstanceRecords, nil
}

// Logs gives LogLines and remembers the filter.
func (f *Fake) Logs(_ context.Context, _ string, q scheduler.LogFilter) ([]scheduler.LogLine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.filters = append(f.filters, q)
	return f.LogLines, nil
}

// List gives Details, shortened.
func (f *Fake) List(context.Context, string) ([]api.ImageInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var l []api.ImageInfo
	for _, d := range f.Details {
		l = append(l, d.ImageInfo)
	}
	return l, nil
}

// Inspect finds one of Details by name or digest.
func (f *Fake) Inspect(_ context.Context, ref image.Ref) (api.ImageDetail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := f.find(ref); i >= 0 {
		return f.Details[i], nil
	}
	return api.ImageDetail{}, fault.New(fault.NotFound, "there is no image %q", ref.Name)
}

// Remove removes one of Details.
func (f *Fake) Remove(_ context.Context, ref image.Ref) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.find(ref)
	if i < 0 {
		return fault.New(fault.NotFound, "there is no image %q", ref.Name)
	}
	f.Details = append(f.Details[:i], f.Details[i+1:]...)
	return nil
}

func (f *Fake) find(ref image.Ref) int {
	for i, d := range f.Details {
		if d.Name == ref.Name || strings.HasPrefix(d.Digest.String(), ref.Name) {
			return i
		}
	}
	return -1
}

// Build calls OnBuild.
func (f *Fake) Build(ctx context.Context, _ string, definition json.RawMessage, p api.BuildSink) (store.Digest, error) {
	if f.OnBuild == nil {
		return store.Digest{}, fault.New(fault.Invalid, "no builder")
	}
	return f.OnBuild(ctx, definition, p)
}

// Pull calls OnPull.
func (f *Fake) Pull(ctx context.Context, _ string, q api.PullRequest, progress func(done, total int64)) (api.ImportResult, error) {
	if f.OnPull == nil {
		return api.ImportResult{}, fault.New(fault.NotFound, "there is no %s", q.Ref)
	}
	return f.OnPull(ctx, q, progress)
}

// Push calls OnPush.
func (f *Fake) Push(ctx context.Context, _ string, q api.PushRequest, progress func(done, total int64)) (api.ExportResult, error) {
	if f.OnPush == nil {
		return api.ExportResult{}, nil
	}
	return f.OnPush(ctx, q, progress)
}

// Export calls OnExport.
func (f *Fake) Export(ctx context.Context, _ string, q api.ExportRequest, w io.Writer, progress func(done, total int64)) (api.ExportResult, error) {
	if f.OnExport == nil {
		return api.ExportResult{}, nil
	}
	return f.OnExport(ctx, q, w, progress)
}

// Diff calls OnDiff.
func (f *Fake) Diff(_ context.Context, _ string, q api.DiffRequest) (*image.Difference, error) {
	if f.OnDiff == nil {
		return &image.Difference{}, nil
	}
	return f.OnDiff(q)
}

// Share calls OnShare.
func (f *Fake) Share(ctx context.Context, _ string, q api.ShareRequest, progress func(done, total int64)) (api.ImportResult, error) {
	if f.OnShare == nil {
		return api.ImportResult{}, fault.New(fault.NotFound, "there is no image %s", q.Ref)
	}
	return f.OnShare(ctx, q, progress)
}

// Check gives Checked.
func (f *Fake) Check(_ context.Context, q api.CheckRequest, progress func(stage string, done, total int64)) (api.StoreCheck, error) {
	progress("store", 1, 1)
	c := f.Checked
	c.Full = q.Full
	return c, nil
}

// Collect calls OnCollect.
func (f *Fake) Collect(ctx context.Context, q api.CollectRequest, progress func(stage string, done, total int64)) (api.Collected, error) {
	if f.OnCollect == nil {
		return api.Collected{DryRun: q.DryRun}, nil
	}
	return f.OnCollect(ctx, q, progress)
}

// Import calls OnImport.
func (f *Fake) Import(ctx context.Context, _ string, q api.ImportRequest, progress func(done, total int64)) (api.ImportResult, error) {
	if f.OnImport == nil {
		return api.ImportResult{}, fault.New(fault.NotFound, "there is no %s", q.Path)
	}
	return f.OnImport(ctx, q, progress)
}

// Has reports whether Put was called with ref.
func (f *Fake) Has(_, ref string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.blobs[ref]
	return ok, nil
}

// Put keeps a blob without checking it.
func (f *Fake) Put(_ context.Context, _, ref string, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blobs == nil {
		f.blobs = map[string][]byte{}
	}
	f.blobs[ref] = b
	return nil
}

func (f *Fake) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = io.WriteString(w, f.MetricsText)
}

// StoreStats gives StoreState.
func (f *Fake) StoreStats(context.Context) (api.StoreStats, error) { return f.StoreState, nil }

// Nodes gives Cluster.
func (f *Fake) Nodes(context.Context) (api.NodeList, error) { return f.Cluster, nil }

// NodeToken gives a token that says what it is good for.
func (f *Fake) NodeToken(_ context.Context, q api.NodeTokenRequest) (api.NodeToken, error) {
	return api.NodeToken{Token: fmt.Sprintf("token for %v, reusable %v", q.Expires, q.Reusable)}, nil
}

// RemoveNode knows the node "old".
func (f *Fake) RemoveNode(_ context.Context, name string) (api.NodeRemoval, error) {
	if name != "old" {
		return api.NodeRemoval{}, fault.New(fault.NotFound, "the cluster has no node %q", name)
	}
	return api.NodeRemoval{WithdrawnTokens: 2}, nil
}
