package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/api/apitest"
	"brisk.dev/brisk/internal/cluster"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves f and gives a client of it.
func start(t testing.TB, f *apitest.Fake, o api.Options) (*api.Client, string) {
	t.Helper()
	socket := apitest.Serve(t, f, o)
	c := api.Dial(socket, image.DefaultWorkspace)
	t.Cleanup(c.Close)
	return c, socket
}

// output is a Sink that keeps everything.
type output struct {
	call        string
	out, errors bytes.Buffer
}

func (o *output) Accepted(call string) error { o.call = call; return nil }

func (o *output) Log(stream string, p []byte) error {
	if stream == "stderr" {
		o.errors.Write(p)
	} else {
		o.out.Write(p)
	}
	return nil
}

func TestMetrics(t *testing.T) {
	c, _ := start(t, &apitest.Fake{MetricsText: "# TYPE a counter\na 1\n"}, api.Options{})
	text, err := c.Metrics(t.Context())
	require.NoError(t, err)
	require.Equal(t, "# TYPE a counter\na 1\n", string(text))
}

var digest = store.Sum([]byte("a function"))

func TestInfo(t *testing.T) {
	started := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	want := api.Info{Version: "1.2", PID: 42, Data: "/data", Workspaces: []string{"default"}, Node: "n1", Started: started}
	c, _ := start(t, &apitest.Fake{}, api.Options{Info: want})
	got, err := c.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestShutdownIsPassedOn(t *testing.T) {
	asked := make(chan struct{}, 1)
	c, _ := start(t, &apitest.Fake{}, api.Options{Shutdown: func() { asked <- struct{}{} }})
	require.NoError(t, c.Shutdown(t.Context()))
	<-asked
}

func TestCallReturnsTheResult(t *testing.T) {
	f := &apitest.Fake{OnCall: func(_ context.Context, r scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
		require.Equal(t, "default", r.Workspace)
		require.Equal(t, "stats", r.App)
		require.Equal(t, digest, r.Function)
		require.NoError(t, s.Accepted("c1"))
		require.NoError(t, s.Log("stdout", []byte("hello\n")))
		require.NoError(t, s.Log("stderr", []byte("\x00\xff\n")))
		return scheduler.Outcome{Kind: scheduler.Returned, Payload: append([]byte("re:"), r.Input...), MS: 1.5}
	}}
	c, _ := start(t, f, api.Options{})
	var out output
	o := c.Call(t.Context(), digest, "stats", []byte("in"), &out)
	require.NoError(t, o.Err)
	require.Equal(t, scheduler.Outcome{Kind: scheduler.Returned, Payload: []byte("re:in"), MS: 1.5}, o)
	require.Equal(t, "c1", out.call)
	require.Equal(t, "hello\n", out.out.String())
	require.Equal(t, "\x00\xff\n", out.errors.String())
}

func TestCallWire(t *testing.T) {
	outcomes := []struct {
		name    string
		outcome scheduler.Outcome
		status  int
		want    string
	}{
		{"result", scheduler.Outcome{Kind: scheduler.Returned, Payload: []byte("xyz"), MS: 0}, 200,
			`{"type":"accepted","call":"c1"}` + "\n" + `{"type":"result","call":"c1","ms":0,"len":3}` + "\nxyz"},
		{"empty result", scheduler.Outcome{Kind: scheduler.Returned}, 200,
			`{"type":"accepted","call":"c1"}` + "\n" + `{"type":"result","call":"c1","ms":0,"len":0}` + "\n"},
		{"exception", scheduler.Outcome{Kind: scheduler.Raised, Payload: []byte("p"), MS: 2,
			Exception: &scheduler.Exception{Type: "ValueError", Module: "builtins", Message: "no", Traceback: "t\n", Kind: "raised"}}, 200,
			`{"type":"accepted","call":"c1"}` + "\n" +
				`{"type":"exception","call":"c1","ms":2,"error":{"type":"ValueError","module":"builtins","message":"no","traceback":"t\n","kind":"raised"},"len":1}` + "\np"},
		{"failed", scheduler.Outcome{Kind: scheduler.Failed, Err: fault.New(fault.Timeout, "it took 3 s").WithHint("Raise timeout.")}, 200,
			`{"type":"accepted","call":"c1"}` + "\n" +
				`{"type":"failed","call":"c1","error":{"class":"timeout","message":"it took 3 s","hint":"Raise timeout."}}` + "\n"},
	}
	for _, tt := range outcomes {
		t.Run(tt.name, func(t *testing.T) {
			f := &apitest.Fake{OnCall: func(_ context.Context, _ scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
				_ = s.Accepted("c1")
				return tt.outcome
			}}
			_, socket := start(t, f, api.Options{})
			status, body := raw(t, socket, "POST", "/v1/w/default/functions/"+digest.String()+"/call", "")
			require.Equal(t, tt.status, status)
			require.Equal(t, tt.want, body)
		})
	}
}

func TestCallOutcomesThroughTheClient(t *testing.T) {
	want := scheduler.Outcome{Kind: scheduler.Raised, Payload: []byte("pickle"), MS: 7,
		Exception: &scheduler.Exception{Type: "E", Module: "m", Message: "x", Traceback: strings.Repeat("line\n", 100_000), Kind: "raised"}}
	f := &apitest.Fake{OnCall: func(_ context.Context, r scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
		_ = s.Accepted("c1")
		if string(r.Input) == "raise" {
			return want
		}
		return scheduler.Outcome{Kind: scheduler.Failed, Err: fault.New(fault.Exhausted, "killed at 256 MiB").WithHint("Raise memory.")}
	}}
	c, _ := start(t, f, api.Options{})
	require.Equal(t, want, c.Call(t.Context(), digest, "", []byte("raise"), &output{}))

	o := c.Call(t.Context(), digest, "", nil, &output{})
	require.Equal(t, scheduler.Failed, o.Kind)
	require.EqualError(t, o.Err, "killed at 256 MiB")
	require.Equal(t, fault.Exhausted, fault.ClassOf(o.Err))
	require.Equal(t, "Raise memory.", fault.HintOf(o.Err))
}

func TestEveryClassSurvivesTheWire(t *testing.T) {
	statuses := map[fault.Class]int{
		fault.Invalid: 400, fault.NotFound: 404, fault.Exists: 409, fault.Unavailable: 503, fault.Corrupt: 500,
		fault.Timeout: 504, fault.Cancelled: 499, fault.DiskFull: 507, fault.Exhausted: 429, fault.Machine: 501,
		fault.BuildFailed: 422, fault.UserCode: 422, fault.Interrupted: 502, fault.Internal: 500,
	}
	for class, status := range statuses {
		t.Run(string(class), func(t *testing.T) {
			f := &apitest.Fake{OnCall: func(context.Context, scheduler.CallRequest, scheduler.Sink) scheduler.Outcome {
				return scheduler.Outcome{Kind: scheduler.Failed, Err: fault.New(class, "why").WithHint("Do that.")}
			}}
			c, socket := start(t, f, api.Options{})
			o := c.Call(t.Context(), digest, "", nil, &output{})
			require.Equal(t, class, fault.ClassOf(o.Err))
			require.EqualError(t, o.Err, "why")
			require.Equal(t, "Do that.", fault.HintOf(o.Err))

			got, body := raw(t, socket, "POST", "/v1/w/default/functions/"+digest.String()+"/call", "")
			require.Equal(t, status, got)
			require.JSONEq(t, `{"error":{"class":"`+string(class)+`","message":"why","hint":"Do that."}}`, body)
		})
	}
}

func TestDisconnectCancels(t *testing.T) {
	entered, cancelled := make(chan struct{}), make(chan struct{})
	wait := func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		close(cancelled)
		return ctx.Err()
	}
	sources := map[string]struct {
		fake *apitest.Fake
		ask  func(context.Context, *api.Client)
	}{
		"a call": {
			&apitest.Fake{OnCall: func(ctx context.Context, _ scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
				_ = s.Accepted("c1")
				return scheduler.Outcome{Kind: scheduler.Failed, Err: wait(ctx)}
			}},
			func(ctx context.Context, c *api.Client) {
				o := c.Call(ctx, digest, "", nil, &output{})
				require.Equal(t, fault.Cancelled, fault.ClassOf(o.Err))
			},
		},
		"a container": {
			&apitest.Fake{OnRun: func(ctx context.Context, _ scheduler.ContainerRequest, _ *os.File, _ scheduler.Sink) (scheduler.ContainerExit, error) {
				return scheduler.ContainerExit{}, wait(ctx)
			}},
			func(ctx context.Context, c *api.Client) {
				_, err := c.Run(ctx, scheduler.ContainerRequest{}, nil, &output{})
				require.Equal(t, fault.Cancelled, fault.ClassOf(err))
			},
		},
		"a container with input that it does not read": {
			&apitest.Fake{OnRun: func(ctx context.Context, _ scheduler.ContainerRequest, _ *os.File, _ scheduler.Sink) (scheduler.ContainerExit, error) {
				return scheduler.ContainerExit{}, wait(ctx)
			}},
			func(ctx context.Context, c *api.Client) {
				_, err := c.Run(ctx, scheduler.ContainerRequest{}, strings.NewReader(strings.Repeat("x", 1<<20)), &output{})
				require.Equal(t, fault.Cancelled, fault.ClassOf(err))
			},
		},
		"a build": {
			&apitest.Fake{OnBuild: func(ctx context.Context, _ json.RawMessage, _ api.BuildSink) (store.Digest, error) {
				return store.Digest{}, wait(ctx)
			}},
			func(ctx context.Context, c *api.Client) {
				_, err := c.Build(ctx, json.RawMessage(`{}`), nil)
				require.Equal(t, fault.Cancelled, fault.ClassOf(err))
			},
		},
	}
	for name, s := range sources {
		t.Run(name, func(t *testing.T) {
			entered, cancelled = make(chan struct{}), make(chan struct{})
			c, _ := start(t, s.fake, api.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			asked := make(chan struct{})
			go func() { defer close(asked); s.ask(ctx, c) }()
			<-entered
			cancel()
			<-asked
			<-cancelled
		})
	}
}

func TestLargeBodiesBothWays(t *testing.T) {
	const n = 64 << 20 // beyond any buffer
	f := &apitest.Fake{OnCall: func(_ context.Context, r scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
		_ = s.Accepted("c1")
		return scheduler.Outcome{Kind: scheduler.Returned, Payload: r.Input}
	}}
	c, _ := start(t, f, api.Options{})
	in := bytes.Repeat([]byte("0123456789abcdef"), n/16)
	o := c.Call(t.Context(), digest, "", in, &output{})
	require.NoError(t, o.Err)
	require.True(t, bytes.Equal(in, o.Payload))
}

func TestInputOverTheLimit(t *testing.T) {
	c, socket := start(t, &apitest.Fake{}, api.Options{MaxInput: 1 << 20})
	o := c.Call(t.Context(), digest, "", make([]byte, 1<<20+1), &output{})
	require.EqualError(t, o.Err, "the request's body is larger than the limit of 1 MiB")
	require.Equal(t, fault.Invalid, fault.ClassOf(o.Err))

	// The same without a length given beforehand.
	req, err := http.NewRequest(http.MethodPost, "http://brisk/v1/w/default/functions/"+digest.String()+"/call",
		io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), strings.NewReader("x")))
	require.NoError(t, err)
	status, body := do(t, socket, req)
	require.Equal(t, 400, status)
	require.Contains(t, body, "limit of 1 MiB")
}

// TestSlowReaderHoldsTheOutputBack: whatever has been written, the client has
// read, but for what the socket and small buffers hold.
func TestSlowReaderHoldsTheOutputBack(t *testing.T) {
	const pieces, size, buffers = 1600, 64 << 10, 1 << 20 // 100 MB
	var written atomic.Int64
	f := &apitest.Fake{OnCall: func(_ context.Context, _ scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
		_ = s.Accepted("c1")
		p := bytes.Repeat([]byte("y"), size)
		for range pieces {
			if err := s.Log("stdout", p); err != nil {
				return scheduler.Outcome{Kind: scheduler.Failed, Err: err}
			}
			written.Add(size)
		}
		return scheduler.Outcome{Kind: scheduler.Returned}
	}}
	_, socket := start(t, f, api.Options{})
	conn, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer conn.Close()
	req, err := http.NewRequest(http.MethodPost, "http://brisk/v1/w/default/functions/"+digest.String()+"/call", http.NoBody)
	require.NoError(t, err)
	require.NoError(t, req.Write(conn))
	for read := int64(0); read < pieces*size; {
		n, err := io.CopyN(io.Discard, conn, 256<<10)
		require.NoError(t, err)
		read += n
		require.LessOrEqual(t, written.Load(), read+buffers)
	}
}

func TestRunPassesInputOutputAndExit(t *testing.T) {
	f := &apitest.Fake{OnRun: func(_ context.Context, r scheduler.ContainerRequest, stdin *os.File, s scheduler.Sink) (scheduler.ContainerExit, error) {
		require.Equal(t, scheduler.ContainerRequest{Workspace: "default", Image: "web", Args: []string{"cat"}, Env: []string{"A=1"},
			CPU: 0.5, Memory: 64, Timeout: 2, AllowNetworks: []string{"10.0.0.0/8"}}, r)
		b, err := io.ReadAll(stdin)
		require.NoError(t, err)
		require.NoError(t, s.Log("stdout", b))
		return scheduler.ContainerExit{Code: 137, OOM: true}, nil
	}}
	c, _ := start(t, f, api.Options{})
	text := strings.Repeat("\nline", 100_000)
	var out output
	exit, err := c.Run(t.Context(), scheduler.ContainerRequest{Image: "web", Args: []string{"cat"}, Env: []string{"A=1"},
		CPU: 0.5, Memory: 64, Timeout: 2, AllowNetworks: []string{"10.0.0.0/8"}}, strings.NewReader(text), &out)
	require.NoError(t, err)
	require.Equal(t, scheduler.ContainerExit{Code: 137, OOM: true}, exit)
	require.Equal(t, text, out.out.String())
}

func TestRunWithoutInput(t *testing.T) {
	f := &apitest.Fake{OnRun: func(_ context.Context, _ scheduler.ContainerRequest, stdin *os.File, _ scheduler.Sink) (scheduler.ContainerExit, error) {
		require.Nil(t, stdin)
		return scheduler.ContainerExit{}, nil
	}}
	_, socket := start(t, f, api.Options{})
	status, body := raw(t, socket, "POST", "/v1/w/default/run", `{"image":"web"}`)
	require.Equal(t, 200, status)
	require.Equal(t, `{"type":"exit","code":0,"oom":false}`+"\n", body)
}

func TestRunEndsThoughInputGoesOn(t *testing.T) {
	f := &apitest.Fake{OnRun: func(_ context.Context, _ scheduler.ContainerRequest, stdin *os.File, s scheduler.Sink) (scheduler.ContainerExit, error) {
		b := make([]byte, 4)
		_, err := io.ReadFull(stdin, b)
		require.NoError(t, err)
		_ = s.Log("stdout", b)
		return scheduler.ContainerExit{Code: 3}, nil
	}}
	c, _ := start(t, f, api.Options{})
	t.Run("for ever", func(t *testing.T) {
		var out output
		exit, err := c.Run(t.Context(), scheduler.ContainerRequest{}, endless{}, &out)
		require.NoError(t, err)
		require.Equal(t, 3, exit.Code)
		require.Equal(t, "yyyy", out.out.String())
	})
	t.Run("but nothing comes", func(t *testing.T) {
		r, w := io.Pipe()
		defer w.Close()
		go io.WriteString(w, "abcd")
		var out output
		exit, err := c.Run(t.Context(), scheduler.ContainerRequest{}, r, &out)
		require.NoError(t, err)
		require.Equal(t, 3, exit.Code)
		require.Equal(t, "abcd", out.out.String())
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'y'
	}
	return len(p), nil
}

func TestRunFails(t *testing.T) {
	c, _ := start(t, &apitest.Fake{}, api.Options{})
	for name, in := range map[string]io.Reader{"without input": nil, "with input": endless{}} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Run(t.Context(), scheduler.ContainerRequest{Image: "nope"}, in, &output{})
			require.EqualError(t, err, `there is no image "nope"`)
			require.Equal(t, fault.NotFound, fault.ClassOf(err))
		})
	}
}

// building is a BuildSink that writes all down.
type building struct{ lines []string }

func (b *building) Step(i, n int, text string, cached bool) error {
	line := text
	if cached {
		line += " (cached)"
	}
	b.lines = append(b.lines, line)
	return nil
}
func (b *building) Log(p []byte) error         { b.lines = append(b.lines, "> "+string(p)); return nil }
func (b *building) Progress(text string) error { b.lines = append(b.lines, "... "+text); return nil }

func TestBuild(t *testing.T) {
	want := store.Sum([]byte("image"))
	f := &apitest.Fake{OnBuild: func(_ context.Context, d json.RawMessage, p api.BuildSink) (store.Digest, error) {
		require.JSONEq(t, `{"steps":[]}`, string(d))
		require.NoError(t, p.Step(1, 2, "debian_slim", true))
		require.NoError(t, p.Step(2, 2, "apt_install", false))
		require.NoError(t, p.Log([]byte("Get:1\n")))
		require.NoError(t, p.Progress("committing"))
		return want, nil
	}}
	c, _ := start(t, f, api.Options{})
	var b building
	got, err := c.Build(t.Context(), json.RawMessage(`{"steps":[]}`), &b)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, []string{"debian_slim (cached)", "apt_install", "> Get:1\n", "... committing"}, b.lines)
}

func TestBuildFailsInTheMiddle(t *testing.T) {
	f := &apitest.Fake{OnBuild: func(_ context.Context, _ json.RawMessage, p api.BuildSink) (store.Digest, error) {
		_ = p.Step(1, 1, "pip_install nope", false)
		return store.Digest{}, fault.New(fault.BuildFailed, "step 1 of 1 ended with 1")
	}}
	c, _ := start(t, f, api.Options{})
	var b building
	_, err := c.Build(t.Context(), json.RawMessage(`{}`), &b)
	require.Equal(t, fault.BuildFailed, fault.ClassOf(err))
	require.Equal(t, []string{"pip_install nope"}, b.lines)
}

func TestImport(t *testing.T) {
	want := api.ImportResult{Digest: digest, Name: "web", Files: 3, Bytes: 10, Chunks: 2, NewChunks: 1, NewBytes: 5, MS: 4}
	f := &apitest.Fake{OnImport: func(_ context.Context, q api.ImportRequest, progress func(done, total int64)) (api.ImportResult, error) {
		require.Equal(t, api.ImportRequest{Path: "/tmp/web.tar", Tag: "1", Name: "web"}, q)
		progress(5, 10)
		return want, nil
	}}
	c, _ := start(t, f, api.Options{})
	var done, total int64
	got, err := c.Import(t.Context(), api.ImportRequest{Path: "/tmp/web.tar", Tag: "1", Name: "web"}, func(d, n int64) { done, total = d, n })
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, []int64{5, 10}, []int64{done, total})

	for _, q := range []api.ImportRequest{{Path: "web.tar", Name: "web"}, {Path: "/tmp/web.tar"}} {
		_, err := c.Import(t.Context(), q, nil)
		require.Equal(t, fault.Invalid, fault.ClassOf(err), "%+v", q)
	}
}

func TestImages(t *testing.T) {
	d := api.ImageDetail{ImageInfo: api.ImageInfo{Name: "team/web:1", Digest: digest, Files: 3, Bytes: 9, Created: time.Unix(0, 0).UTC()},
		Config: image.Config{Cmd: []string{"sh"}}, Chunks: 4, Packs: 1, Metadata: 4096, Mounted: true, Mounts: []string{"native"}, Local: &api.ImageLocal{Bytes: 9, Chunks: 4, TotalBytes: 9},
		Read: &api.ImageReads{OriginBytes: 1, OriginChunks: 2, CacheBytes: 3, CacheChunks: 4}}
	c, _ := start(t, &apitest.Fake{Details: []api.ImageDetail{d}}, api.Options{})
	l, err := c.Images(t.Context())
	require.NoError(t, err)
	require.Equal(t, []api.ImageInfo{d.ImageInfo}, l)
	for _, ref := range []string{"team/web:1", digest.String(), digest.Short()} {
		got, err := c.Image(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, d, got)
	}
	require.NoError(t, c.RemoveImage(t.Context(), "team/web:1"))
	require.Equal(t, fault.NotFound, fault.ClassOf(c.RemoveImage(t.Context(), "team/web:1")))
}

func TestEmptyListsAreLists(t *testing.T) {
	_, socket := start(t, &apitest.Fake{}, api.Options{})
	for _, path := range []string{"images", "calls", "instances", "logs"} {
		status, body := raw(t, socket, "GET", "/v1/w/default/"+path, "")
		require.Equal(t, 200, status)
		require.Equal(t, "[]\n", body, path)
	}
}

func TestRegister(t *testing.T) {
	f := &apitest.Fake{}
	c, _ := start(t, f, api.Options{})
	fn := function.Function{Workspace: "other", App: "a", Name: "f", Module: "m", Qualname: "f", Image: digest}
	d, err := c.Register(t.Context(), fn)
	require.NoError(t, err)
	got := f.Registered()
	require.Len(t, got, 1)
	require.Equal(t, "default", got[0].Workspace, "the path's workspace counts, not the body's")
	require.Equal(t, got[0].Digest(), d)

	fn.Name = "no/name"
	_, err = c.Register(t.Context(), fn)
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
}

func TestHistory(t *testing.T) {
	when := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	f := &apitest.Fake{
		CallRecords: []scheduler.CallRecord{
			{ID: "bb22", Function: "mean", State: scheduler.CallSucceeded, Created: when, MS: 3,
				Steps: []trace.Step{{Name: "restore", Start: 1, MS: 2, Note: "n"}}},
			{ID: "aa11", Function: "mean", State: scheduler.CallFailed, Created: when,
				Error: &scheduler.ErrorRecord{Class: fault.Timeout, Message: "m"}},
		},
		InstanceRecords: []scheduler.InstanceRecord{{ID: "i1", State: "idle", Since: when}},
		LogLines:        []scheduler.LogLine{{Time: when, Instance: "i1", Stream: "stdout", Text: "hi"}},
	}
	c, _ := start(t, f, api.Options{})
	calls, err := c.Calls(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, f.CallRecords, calls)
	calls, err = c.Calls(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, f.CallRecords[:1], calls)
	call, err := c.CallByID(t.Context(), "aa")
	require.NoError(t, err)
	require.Equal(t, f.CallRecords[1], call)
	_, err = c.CallByID(t.Context(), "zz")
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
	instances, err := c.Instances(t.Context())
	require.NoError(t, err)
	require.Equal(t, f.InstanceRecords, instances)
	lines, err := c.Logs(t.Context(), scheduler.LogFilter{Function: "mean", Limit: 5})
	require.NoError(t, err)
	require.Equal(t, f.LogLines, lines)
	_, err = c.Logs(t.Context(), scheduler.LogFilter{Call: "aa"})
	require.NoError(t, err)
	require.Equal(t, []scheduler.LogFilter{{Function: "mean", Limit: 5}, {Call: "aa", Limit: 1000}}, f.Filters())
}

func TestNodes(t *testing.T) {
	want := api.NodeList{Status: cluster.Status{Cluster: "c", Self: "a", Members: []cluster.Member{{Name: "a", Alive: true}}}}
	c, _ := start(t, &apitest.Fake{Cluster: want}, api.Options{})
	got, err := c.Nodes(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)
	token, err := c.NodeToken(t.Context(), api.NodeTokenRequest{Expires: time.Minute, Reusable: true})
	require.NoError(t, err)
	require.Equal(t, "token for 1m0s, reusable true", token.Token)
	_, err = c.NodeToken(t.Context(), api.NodeTokenRequest{Expires: -1})
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
	r, err := c.RemoveNode(t.Context(), "old")
	require.NoError(t, err)
	require.Equal(t, api.NodeRemoval{WithdrawnTokens: 2}, r)
	_, err = c.RemoveNode(t.Context(), "a/b")
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
}

func TestStoreStats(t *testing.T) {
	want := api.StoreStats{Images: 1, Packs: 2, OriginBytes: 3, Cache: api.CacheUse{Chunks: 4, Limit: 5}}
	c, _ := start(t, &apitest.Fake{StoreState: want}, api.Options{})
	got, err := c.StoreStats(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestCollect(t *testing.T) {
	want := api.Collected{
		DryRun: true, Bytes: 10, Freed: []api.Garbage{{Kind: "packs", Count: 2, Bytes: 10}}, Notes: []string{"n"},
		Waiting: api.Garbage{Count: 1, Bytes: 5}, MS: 1,
	}
	f := &apitest.Fake{OnCollect: func(_ context.Context, q api.CollectRequest, progress func(string, int64, int64)) (api.Collected, error) {
		if q.Grace == 1 {
			return api.Collected{}, fault.New(fault.Corrupt, "a manifest is damaged")
		}
		progress("packs", 1, 2)
		return want, nil
	}}
	c, _ := start(t, f, api.Options{})
	var seen []string
	got, err := c.Collect(t.Context(), api.CollectRequest{DryRun: true, Grace: 60}, func(stage string, done, total int64) {
		seen = append(seen, fmt.Sprint(stage, done, total))
	})
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, []string{"packs1 2"}, seen)
	_, err = c.Collect(t.Context(), api.CollectRequest{Grace: 1}, nil)
	require.Equal(t, fault.Corrupt, fault.ClassOf(err))
	_, err = c.Collect(t.Context(), api.CollectRequest{Grace: -1}, nil)
	require.EqualError(t, err, "grace=-1: want 0 seconds to a year")
}

func TestBadRequests(t *testing.T) {
	_, socket := start(t, &apitest.Fake{}, api.Options{})
	tests := []struct {
		method, path, body string
		status             int
		message            string
	}{
		{"GET", "/v1/w/other/images", "", 404, `there is no workspace "other"`},
		{"POST", "/v1/w/other/functions/" + digest.String() + "/call", "", 404, `there is no workspace "other"`},
		{"POST", "/v1/w/default/functions/abc/call", "", 400, `"abc" is not a digest: want 64 hexadecimal digits`},
		{"POST", "/v1/w/default/functions", "{", 400, "read the request: unexpected end of JSON input"},
		{"POST", "/v1/w/default/run", "nope", 400, "read the request: invalid character 'o' in literal null (expecting 'u')"},
		{"GET", "/v1/w/default/calls?limit=0", "", 400, "limit=0: want 1 to 10000"},
		{"GET", "/v1/w/default/logs?limit=x", "", 400, "limit=x: want 1 to 100000"},
		{"GET", "/v1/nothing", "", 404, "there is no GET /v1/nothing in this version of the API"},
		{"PATCH", "/v1/info", "", 404, "there is no PATCH /v1/info in this version of the API"},
	}
	for _, tt := range tests {
		status, body := raw(t, socket, tt.method, tt.path, tt.body)
		require.Equal(t, tt.status, status, tt.path)
		var e struct{ Error scheduler.ErrorRecord }
		require.NoError(t, json.Unmarshal([]byte(body), &e), body)
		require.Equal(t, tt.message, e.Error.Message)
	}
}

func TestAPanicIsAnInternalError(t *testing.T) {
	f := &apitest.Fake{OnCall: func(context.Context, scheduler.CallRequest, scheduler.Sink) scheduler.Outcome { panic("oh") }}
	c, _ := start(t, f, api.Options{})
	o := c.Call(t.Context(), digest, "", nil, &output{})
	require.Equal(t, fault.Internal, fault.ClassOf(o.Err))
	require.NotContains(t, o.Err.Error(), "oh")
	_, err := c.Info(t.Context())
	require.NoError(t, err, "the server goes on")
}

func TestNoServer(t *testing.T) {
	c := api.Dial(t.TempDir()+"/none.sock", "default")
	_, err := c.Info(t.Context())
	require.Equal(t, fault.Unavailable, fault.ClassOf(err))
	_, err = c.Run(t.Context(), scheduler.ContainerRequest{}, nil, &output{})
	require.Equal(t, fault.Unavailable, fault.ClassOf(err))
}

func TestServerThatDiesInAStream(t *testing.T) {
	socket := t.TempDir() + "/s"
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.ReadAtLeast(conn, make([]byte, 4096), 1)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n"+`{"type":"accepted","call":"c1"}`+"\n\r\n")
		conn.Close()
	}()
	c := api.Dial(socket, "default")
	var out output
	o := c.Call(t.Context(), digest, "", nil, &out)
	require.Equal(t, "c1", out.call)
	require.Equal(t, fault.Interrupted, fault.ClassOf(o.Err))
}

func TestDrainRefusesNewRequestsOnly(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	f := &apitest.Fake{OnCall: func(_ context.Context, _ scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
		_ = s.Accepted("c1")
		close(entered)
		<-leave
		return scheduler.Outcome{Kind: scheduler.Returned}
	}}
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/s")
	require.NoError(t, err)
	s := api.New(f.Backend(), api.Options{Info: api.Info{Workspaces: []string{"default"}}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c := api.Dial(dir+"/s", "default")
	defer c.Close()
	got := make(chan scheduler.Outcome, 1)
	go func() { got <- c.Call(context.Background(), digest, "", nil, &output{}) }()
	<-entered
	require.False(t, s.DrainIfIdle(0))
	s.Drain()
	_, err = c.Info(t.Context())
	require.Equal(t, fault.Unavailable, fault.ClassOf(err))
	close(leave)
	require.Equal(t, scheduler.Returned, (<-got).Kind)
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, <-served)
	require.False(t, s.DrainIfIdle(time.Hour))
	require.True(t, s.DrainIfIdle(0))
}

func TestCloseCutsWhatDoesNotEnd(t *testing.T) {
	f := &apitest.Fake{OnCall: func(ctx context.Context, _ scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
		_ = s.Accepted("c1")
		<-ctx.Done()
		return scheduler.Outcome{Kind: scheduler.Failed, Err: ctx.Err()}
	}}
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/s")
	require.NoError(t, err)
	s := api.New(f.Backend(), api.Options{Info: api.Info{Workspaces: []string{"default"}}})
	go s.Serve(l)
	c := api.Dial(dir+"/s", "default")
	defer c.Close()
	accepted := make(chan struct{})
	got := make(chan scheduler.Outcome, 1)
	go func() { got <- c.Call(context.Background(), digest, "", nil, acceptance(accepted)) }()
	<-accepted
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Close(ctx))
	o := <-got
	require.Error(t, o.Err)
	require.False(t, errors.Is(o.Err, context.Canceled))
}

// Work that may take minutes is not waited for, and its clients hear why.
func TestCloseCancelsBuildsAndImports(t *testing.T) {
	entered := make(chan struct{}, 2)
	f := &apitest.Fake{
		OnBuild: func(ctx context.Context, _ json.RawMessage, p api.BuildSink) (store.Digest, error) {
			_ = p.Progress("begun")
			entered <- struct{}{}
			<-ctx.Done()
			return store.Digest{}, fault.Wrap(ctx.Err(), "build", "it")
		},
		OnImport: func(ctx context.Context, _ api.ImportRequest, _ func(done, total int64)) (api.ImportResult, error) {
			entered <- struct{}{}
			<-ctx.Done()
			return api.ImportResult{}, fault.Wrap(ctx.Err(), "import", "it")
		},
	}
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/s")
	require.NoError(t, err)
	s := api.New(f.Backend(), api.Options{Info: api.Info{Workspaces: []string{"default"}}})
	go s.Serve(l)
	c := api.Dial(dir+"/s", "default")
	defer c.Close()
	got := make(chan error, 2)
	go func() {
		_, err := c.Import(context.Background(), api.ImportRequest{Path: "/x", Name: "x"}, nil)
		got <- err
	}()
	answer := make(chan string, 1)
	go func() {
		_, body := raw(t, dir+"/s", http.MethodPost, "/v1/w/default/images/build", "{}")
		answer <- body
	}()
	<-entered
	<-entered
	require.NoError(t, s.Close(t.Context()))
	require.EqualError(t, <-got, "the server is shutting down")
	require.Contains(t, <-answer, `{"class":"unavailable","message":"the server is shutting down"}`)
}

// acceptance is a Sink that closes a channel when the call is accepted.
type acceptance chan struct{}

func (a acceptance) Accepted(string) error    { close(a); return nil }
func (a acceptance) Log(string, []byte) error { return nil }

func raw(t *testing.T, socket, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://brisk"+path, strings.NewReader(body))
	require.NoError(t, err)
	return do(t, socket, req)
}

func do(t *testing.T, socket string, req *http.Request) (int, string) {
	t.Helper()
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(b)
}

// BenchmarkCall is what the API adds to a warm call, client included.
func BenchmarkCall(b *testing.B) {
	f := &apitest.Fake{OnCall: func(_ context.Context, r scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
		_ = s.Accepted("c1")
		return scheduler.Outcome{Kind: scheduler.Returned, Payload: r.Input}
	}}
	c, _ := start(b, f, api.Options{})
	in := make([]byte, 100)
	b.ReportAllocs()
	for b.Loop() {
		if o := c.Call(context.Background(), digest, "a", in, &output{}); o.Err != nil {
			b.Fatal(o.Err)
		}
	}
}
