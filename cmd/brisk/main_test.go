package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/api/apitest"
	"brisk.dev/brisk/internal/cluster"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/server"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/peer"
	"brisk.dev/brisk/internal/trace"
)

var digest = store.Sum([]byte("x"))

// brisk runs one command line in this process.
func brisk(in io.Reader, args ...string) (code int, out, err string) {
	var o, e bytes.Buffer
	code = execute(args, in, &o, &e)
	return code, o.String(), e.String()
}

// serve serves a fake where commands with the returned --data look for a server.
func serve(t *testing.T, f *apitest.Fake) (data string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: sockets are in /run/brisk")
	}
	data = t.TempDir()
	p, err := server.PathsOf(data)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(p.Run, 0o700))
	t.Cleanup(func() { os.RemoveAll(p.Run); os.Remove(filepath.Dir(p.Run)) })
	apitest.ServeAt(t, p.Socket(), f, api.Options{Info: api.Info{Version: version, Workspaces: []string{"default"}}})
	return data
}

func TestMetrics(t *testing.T) {
	const text = `# HELP a_total What a is.
# TYPE a_total counter
a_total{of="x"} 3
# TYPE b histogram
b_bucket{le="0.5"} 1
b_bucket{le="+Inf"} 2
b_sum 4.5
b_count 2
`
	data := serve(t, &apitest.Fake{MetricsText: text})
	code, out, err := brisk(nil, "metrics", "--data", data)
	require.Equal(t, []any{0, text, ""}, []any{code, out, err})
	code, out, err = brisk(nil, "metrics", "--data", data, "--json")
	require.Equal(t, 0, code, err)
	require.JSONEq(t, `[{"name": "a_total", "type": "counter", "help": "What a is.", "samples": [{"labels": {"of": "x"}, "value": 3}]},
		{"name": "b", "type": "histogram", "help": "", "samples": [{"labels": {}, "count": 2, "sum": 4.5, "buckets": [{"at_most": 0.5, "count": 1}]}]}]`, out)
	code, out, err = brisk(nil, "metrics", "--data", data, "--listen", "nowhere:no")
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Contains(t, err, "Name a host and a port that are free")
}

func TestUsage(t *testing.T) {
	nowhere := t.TempDir()
	tests := []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"nope"}, 2, `unknown command "nope" for "brisk"`},
		{[]string{"image", "nope"}, 2, `unknown command "nope" for "brisk image"`},
		{[]string{"store", "nope"}, 2, `unknown command "nope" for "brisk store"`},
		{[]string{"help", "nope"}, 2, `there is no help about "nope"`},
		{[]string{"help", "image", "nope"}, 2, `there is no help about "image nope"`},
		{[]string{"up", "now"}, 2, `unknown command "now" for "brisk up"`},
		{[]string{"up", "--pool", "many"}, 2, `invalid argument "many" for "--pool"`},
		{[]string{"calls", "show"}, 2, "accepts 1 arg(s), received 0"},
		{[]string{"calls", "show", "a", "b"}, 2, "accepts 1 arg(s), received 2"},
		{[]string{"image", "import", "x"}, 2, "import wants --name NAME"},
		{[]string{"image", "rm"}, 2, "requires at least 1 arg(s)"},
		{[]string{"logs", "a", "b"}, 2, "accepts at most 1 arg(s)"},
		{[]string{"ps", "--nope"}, 2, "unknown flag: --nope"},
		{[]string{"run"}, 2, "run wants a file, or --image"},
		{[]string{"run", "--memory", "64", "main_test.go"}, 2, "--memory is for containers"},
		{[]string{"run", "missing.py"}, 3, "there is no file missing.py"},
		{[]string{"run", "missing.py::f"}, 3, "there is no file missing.py"},
		{[]string{"run", "."}, 3, "there is no file ."},
		{[]string{"ps", "--data", nowhere}, 7, "no server answers at /run/brisk/"},
	}
	for _, tt := range tests {
		code, out, err := brisk(nil, tt.args...)
		require.Equal(t, tt.code, code, "%v: %s", tt.args, err)
		require.Empty(t, out, "%v", tt.args)
		require.Contains(t, err, "brisk: "+tt.err, "%v", tt.args)

		code, out, err = brisk(nil, append([]string{"--json"}, tt.args...)...)
		require.Equal(t, tt.code, code, "%v: %s", tt.args, err)
		require.Empty(t, out, "%v", tt.args)
		var e struct{ Error scheduler.ErrorRecord }
		require.NoError(t, json.Unmarshal([]byte(err), &e), "%v: %s", tt.args, err)
		require.Contains(t, e.Error.Message, tt.err)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"help"}, {"--help"}, {"help", "run"}, {"help", "image", "ls"}, {"image"}, {"store", "--help"}, {"--version"}, {"up", "-h"}, {"help", "exit-codes"}, {"version"}, {"version", "--json"}} {
		code, out, err := brisk(nil, args...)
		require.Equal(t, 0, code, "%v", args)
		require.NotEmpty(t, out, "%v", args)
		require.Empty(t, err, "%v", args)
	}
}

// TestEveryCommandExplainsItself: what users see first is help.
func TestEveryCommandExplainsItself(t *testing.T) {
	a := &app{}
	for _, c := range a.root().Commands() {
		require.NotEmpty(t, c.Short, c.Name())
		require.False(t, strings.HasSuffix(c.Short, "."), c.Name())
		for line := range strings.SplitSeq(c.Long, "\n") {
			require.LessOrEqual(t, len(line), 84, "%s: %s", c.Name(), line)
		}
	}
}

func TestExitCodeOfEveryClass(t *testing.T) {
	for class, want := range map[fault.Class]int{
		fault.Invalid: 2, fault.NotFound: 3, fault.Exists: 2, fault.Unavailable: 7, fault.Corrupt: 70, fault.Timeout: 4,
		fault.Cancelled: 4, fault.DiskFull: 6, fault.Exhausted: 1, fault.Machine: 6, fault.BuildFailed: 5, fault.UserCode: 1,
		fault.Interrupted: 70, fault.Internal: 70, "new": 70,
	} {
		require.Equal(t, want, codeOf(fault.New(class, "x")), class)
	}
}

func TestRunImage(t *testing.T) {
	data := serve(t, &apitest.Fake{
		OnRun: func(_ context.Context, r scheduler.ContainerRequest, stdin *os.File, s scheduler.Sink) (scheduler.ContainerExit, error) {
			switch r.Image {
			case "echo":
				b, err := io.ReadAll(stdin)
				require.NoError(t, err)
				_ = s.Log("stdout", b)
				_ = s.Log("stderr", []byte(strings.Join(r.Args, "|")+"\n"))
				return scheduler.ContainerExit{Code: 7}, nil
			case "flags":
				b, _ := json.Marshal(r)
				return scheduler.ContainerExit{}, s.Log("stdout", b)
			case "oom":
				return scheduler.ContainerExit{Code: 137, OOM: true}, nil
			case "slow":
				return scheduler.ContainerExit{}, fault.New(fault.Timeout, "it took too long")
			}
			return scheduler.ContainerExit{}, fault.New(fault.NotFound, "there is no image %q", r.Image)
		},
	})
	code, out, err := brisk(strings.NewReader("in\n"), "run", "--data", data, "--image", "echo", "--", "cat", "--image", "-x")
	require.Equal(t, 7, code)
	require.Equal(t, "in\n", out)
	require.Equal(t, "cat|--image|-x\n", err)

	t.Setenv("PASSED", "on")
	code, out, err = brisk(strings.NewReader(""), "run", "--data", data, "--image", "flags", "-e", "A=1=2", "-e", "PASSED", "-e", "UNSET_VARIABLE",
		"-w", "/srv", "-u", "1000:100", "--cpu", "0.5", "--memory", "64", "--pids", "9", "--timeout", "2.5", "--allow-network", "10.0.0.0/8", "true")
	require.Equal(t, 0, code, err)
	require.JSONEq(t, `{"workspace":"default","image":"flags","args":["true"],"env":["A=1=2","PASSED=on"],"workdir":"/srv","user":"1000:100",
		"cpu":0.5,"memory":64,"pids":9,"timeout":2.5,"block_network":false,"allow_networks":["10.0.0.0/8"]}`, out)

	code, _, err = brisk(strings.NewReader(""), "run", "--data", data, "--image", "oom", "--memory", "64")
	require.Equal(t, 137, code)
	require.Equal(t, "brisk: the container was killed: it needed more than its 64 MiB of memory\n", err)
	code, _, _ = brisk(strings.NewReader(""), "run", "--data", data, "--image", "slow")
	require.Equal(t, 4, code)
	code, _, err = brisk(strings.NewReader(""), "run", "--data", data, "--image", "nope")
	require.Equal(t, 3, code)
	require.Equal(t, "brisk: there is no image \"nope\"\n", err)
	code, _, err = brisk(strings.NewReader(""), "run", "--data", data, "--image", "flags", "-e", "=x")
	require.Equal(t, 2, code, err)
	code, _, err = brisk(nil, "ps", "--data", data, "--workspace", "other")
	require.Equal(t, 3, code)
	require.Equal(t, "brisk: there is no workspace \"other\"\n", err)
}

func TestImages(t *testing.T) {
	created := time.Now().Add(-3 * time.Hour)
	own, others := int64(2<<20), int64(1<<20)
	f := &apitest.Fake{
		Details: []api.ImageDetail{{
			ImageInfo: api.ImageInfo{Name: "web", Digest: digest, Files: 30123, Bytes: 5 << 20, Created: created, OwnBytes: &own, SharedBytes: &others},
			Config:    image.Config{Env: []string{"A=1", "B=2"}, Cmd: []string{"nginx", "-g", "x"}, User: "www"},
			Chunks:    99, Packs: 2, Metadata: 8192, Mounted: true, Mounts: []string{"lazy", "native"}, Local: &api.ImageLocal{Bytes: 2 << 20, Chunks: 40, TotalBytes: 4 << 20}, Read: &api.ImageReads{OriginBytes: 1 << 20, OriginChunks: 8},
		}},
		OnImport: func(_ context.Context, q api.ImportRequest, _ func(done, total int64)) (api.ImportResult, error) {
			if !filepath.IsAbs(q.Path) || filepath.Base(q.Path) != "web.tar" {
				return api.ImportResult{}, fault.New(fault.Invalid, "path %s", q.Path)
			}
			return api.ImportResult{Digest: digest, Name: q.Name, Files: 3, Bytes: 10, Chunks: 2, NewChunks: 1, NewBytes: 5, MS: 4, Kind: "directory", Skipped: []string{"proc"}}, nil
		},
	}
	data := serve(t, f)
	code, out, err := brisk(nil, "image", "ls", "--data", data)
	require.Equal(t, 0, code, err)
	require.Equal(t, "NAME  DIGEST        FILES   SIZE     OWN      AGE\n"+
		"web   "+digest.Short()+"  30,123  5.0 MiB  2.0 MiB  3 h\n", out)

	code, out, _ = brisk(nil, "image", "inspect", "web", "--data", data)
	require.Equal(t, 0, code)
	for _, want := range []string{digest.String(), "30,123", "99 in 2 packs", "2.0 MiB that no other image has, 1.0 MiB that others have too", "1.0 MiB from the origin (8 chunks), 0 B from the cache (0 chunks)", "nginx -g x", "www", "env         A=1\n            B=2\n"} {
		require.Contains(t, out, want)
	}
	code, out, _ = brisk(nil, "image", "inspect", "web", "--data", data, "--json")
	require.Equal(t, 0, code)
	var d api.ImageDetail
	require.NoError(t, json.Unmarshal([]byte(out), &d))
	require.Equal(t, int64(99), d.Chunks)

	code, out, err = brisk(nil, "image", "import", "web.tar", "--name", "new", "--data", data)
	require.Equal(t, 0, code, err)
	require.Equal(t, "imported new: "+digest.Short()+"  3 files, 10 B, 1 new chunk (5 B) in 4.00 ms\n", out)
	require.Equal(t, "brisk: proc is a mount point, and was left out\n", err)
	code, out, _ = brisk(nil, "image", "import", "web.tar", "--name", "new", "--data", data, "--json")
	require.Equal(t, 0, code)
	require.JSONEq(t, `{"digest":"`+digest.String()+`","name":"new","files":3,"bytes":10,"chunks":2,"new_chunks":1,"new_bytes":5,"ms":4,"kind":"directory","skipped":["proc"]}`, out)

	code, out, err = brisk(nil, "image", "rm", "web", "--data", data)
	require.Equal(t, []any{0, "", ""}, []any{code, out, err})
	code, _, err = brisk(nil, "image", "rm", "web", "--data", data)
	require.Equal(t, 3, code)
	require.Contains(t, err, `there is no image "web"`)
	code, out, _ = brisk(nil, "image", "ls", "--data", data, "--json")
	require.Equal(t, 0, code)
	require.Equal(t, "[]\n", out)
}

func TestHistory(t *testing.T) {
	when := time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local)
	f := &apitest.Fake{
		CallRecords: []scheduler.CallRecord{{
			ID: "k7fq2abcdef0", App: "stats", Function: "mean", Digest: digest, Node: "n1", Instance: "i-1", Start: "restored",
			State: scheduler.CallSucceeded, Created: when, MS: 94.1,
			Steps:  []trace.Step{{Name: "call", Start: 90, MS: 4}, {Name: "restore", Start: 2, MS: 88, Note: "512 chunks"}, {Name: "queue", Start: 0, MS: 2, Note: "a note that is too long to stand beside a bar"}},
			Origin: &scheduler.OriginRecord{OriginBytes: 1 << 20, OriginChunks: 12, CacheBytes: 8 << 20, CacheChunks: 70, ImageBytes: 512 << 20},
		}},
		InstanceRecords: []scheduler.InstanceRecord{{ID: "i-1", App: "stats", Function: "mean", Image: digest.String(), State: "idle", Start: "restored", Since: time.Now(), Calls: 1234, MemoryMax: 2 << 30}},
		LogLines:        []scheduler.LogLine{{Time: when, Call: "k7fq2abcdef0", Instance: "i-1", Function: "mean", Stream: "stdout", Text: "a\nb\n"}},
	}
	data := serve(t, f)
	code, out, err := brisk(nil, "ps", "--data", data)
	require.Equal(t, 0, code, err)
	require.Equal(t, "ID   FUNCTION    STATE  START     CALLS  MEMORY   SINCE  IMAGE\n"+
		"i-1  stats.mean  idle   restored  1,234  2.0 GiB  0 s    "+digest.Short()+"\n", out)

	for _, args := range [][]string{{"calls"}, {"calls", "ls"}} {
		code, out, err = brisk(nil, append(args, "--data", data)...)
		require.Equal(t, 0, code, err)
		require.Contains(t, out, "k7fq2abcdef0  stats.mean  succeeded  restored  94.1 ms")
	}

	t.Setenv("COLUMNS", "80")
	code, out, err = brisk(nil, "calls", "show", "k7f", "--data", data)
	require.Equal(t, 0, code, err)
	require.Equal(t, `call k7fq2abcdef0 of stats.mean: succeeded, 94.1 ms
created   2026-11-30 12:00:00.000
start     restored
instance  i-1 on n1
function  `+digest.String()+`
image     1.0 MiB read from the origin (12 chunks), 8.0 MiB from the cache (70), of 512.0 MiB

STEP        AT MS        MS
queue        0.00      2.00  █
  a note that is too long to stand beside a bar
restore      2.00     88.00   ████████████████████████████████████    512 chunks
call        90.00      4.00                                       ██
`, out)
	code, _, _ = brisk(nil, "calls", "show", "zz", "--data", data)
	require.Equal(t, 3, code)

	code, out, err = brisk(nil, "logs", "k7f", "--data", data)
	require.Equal(t, []any{0, "a\nb\n", ""}, []any{code, out, err})
	code, out, _ = brisk(nil, "logs", "mean", "--data", data, "--limit", "5")
	require.Equal(t, 0, code)
	require.Equal(t, "2026-11-30 12:00:00 mean k7fq2abcdef0  a\n2026-11-30 12:00:00 mean k7fq2abcdef0  b\n", out)
	require.Equal(t, []scheduler.LogFilter{{Call: "k7fq2abcdef0", Limit: 1000}, {Function: "mean", Limit: 5}}, f.Filters())
	f.LogLines = nil
	code, _, err = brisk(nil, "logs", "nothing", "--data", data)
	require.Equal(t, 3, code)
	require.Contains(t, err, `there is no call "nothing"`)
	code, out, _ = brisk(nil, "logs", "mean", "--data", data)
	require.Equal(t, []any{0, ""}, []any{code, out})
}

func TestStoreStats(t *testing.T) {
	data := serve(t, &apitest.Fake{StoreState: api.StoreStats{Images: 2, ImageBytes: 3 << 30, Packs: 7, OriginBytes: 1 << 30, Cache: api.CacheUse{
		Chunks: 1000, Limit: 10 << 30, Bytes: 9 << 30, Pinned: 1 << 30, Disk: 9 << 30, Hits: 5, Misses: 6, Drops: 7, Evicted: 8000, EvictedBytes: 1 << 30, Refused: 9,
	}}})
	code, out, err := brisk(nil, "store", "stats", "--data", data)
	require.Equal(t, 0, code, err)
	require.Contains(t, out, `images          2 with 3.0 GiB of files
origin          1.0 GiB, 7 packs
cache           9.0 GiB of 10.0 GiB, 1,000 chunks; mounted images keep 1.0 GiB
cache on disk   9.0 GiB
cache reads     5 hits, 6 misses, 7 damaged
cache evicted   8,000 chunks, 1.0 GiB; 9 not kept
cache verified  not yet
`)
	ended := time.Now().Add(-5*time.Hour - time.Second)
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local)
	require.Equal(t, "all of it 5 h ago; 1.0 GiB of 9.0 GiB since 30 Nov 12:00",
		scrubText(api.Scrubbed{Began: &began, Ended: &ended, Done: 1 << 30, Total: 9 << 30}))
	require.Contains(t, originText(api.StoreStats{Packs: 7, OriginBytes: 1 << 30, Origin: api.Origin{URL: "s3://team", Up: true, Requests: 1000, Failures: 3, Retries: 2, Hedges: 1}}),
		"1.0 GiB, 7 packs in s3://team; 1,000 requests, 3 failed, 2 again, 1 doubled")
	require.Equal(t, "s3://team does not answer: connection refused. Is it up?",
		originText(api.StoreStats{Origin: api.Origin{URL: "s3://team", Error: "connection refused", Hint: "Is it up?"}}))
	code, out, _ = brisk(nil, "store", "stats", "--data", data, "--json")
	require.Equal(t, 0, code)
	require.Contains(t, out, `"packs": 7`)
}

func TestNodes(t *testing.T) {
	f := &apitest.Fake{Cluster: api.NodeList{
		Status: cluster.Status{Cluster: "c1", Self: "a", Age: 4000, Trouble: "it is silent", Members: []cluster.Member{
			{Name: "c", Control: true, Alive: true, Address: "10.0.0.1:7720", Traffic: cluster.Traffic{ServedChunks: 1200, ServedBytes: 100 << 20}},
			{Name: "a", Alive: true, Address: "10.0.0.2:7720"},
			{Name: "b", Seen: 3_000_000, Address: "10.0.0.3:7720", Traffic: cluster.Traffic{FetchedChunks: 1, FetchedBytes: 1024}},
			{Name: "d", Seen: -1},
			{Name: "e", Alive: true, Seen: 100},
		}},
		Peers: peer.Stats{Peers: []peer.One{{Name: "e", State: peer.Convicted}}},
	}}
	data := serve(t, f)
	code, out, errs := brisk(nil, "node", "ls", "--data", data)
	require.Equal(t, 0, code)
	require.Equal(t, `NODE  STATE       ADDRESS        SEEN    SERVED                   FETCHED
c     control     10.0.0.1:7720  4 s     1,200 chunks, 100.0 MiB  -
a     alive       10.0.0.2:7720  here    -                        -
b     dead        10.0.0.3:7720  50 min  -                        1 chunk, 1.0 KiB
d     never seen  -              -       -                        -
e     convicted   -              4 s     -                        -
`, out)
	require.Equal(t, "brisk: the list is 4s old: it is silent\n", errs)
	code, out, errs = brisk(nil, "node", "token", "--expires", "30m", "--reusable", "--data", data)
	require.Equal(t, 0, code)
	require.Equal(t, "token for 30m0s, reusable true\n", out)
	require.Contains(t, errs, "brisk node join TOKEN")
	code, out, errs = brisk(nil, "node", "rm", "old", "--data", data)
	require.Equal(t, 0, code)
	require.Empty(t, out)
	require.Equal(t, "brisk: 2 reusable tokens withdrawn\n", errs)
	code, _, _ = brisk(nil, "node", "rm", "new", "--data", data)
	require.Equal(t, 3, code)
	code, _, errs = brisk(nil, "node", "ls", "--data", t.TempDir())
	require.Equal(t, 7, code, errs)
	code, _, errs = brisk(nil, "node", "join", "brisk1_", "--data", t.TempDir())
	require.Equal(t, 2, code, errs)
	require.Contains(t, errs, "Copy the whole line")
}

func TestStoreFsck(t *testing.T) {
	d := store.Sum([]byte("image"))
	f := &apitest.Fake{Checked: api.StoreCheck{Images: 2, Packs: 1, Bytes: 2048}}
	data := serve(t, f)
	code, out, err := brisk(nil, "store", "fsck", "--data", data)
	require.Equal(t, []any{0, "2 images, 1 pack of 2.0 KiB: looked at\n", ""}, []any{code, out, err})
	f.Checked.Damaged = []api.DamagedImage{{Workspace: "default", Names: []string{"web", "app"}, Digest: d, Problem: "pack 1234 is missing"}}
	f.Checked.Cache = &api.CacheCheck{Chunks: 10, Bytes: 4096, Damaged: 1}
	code, out, err = brisk(nil, "store", "fsck", "--full", "--data", data)
	require.Equal(t, 70, code)
	require.Equal(t, "2 images, 1 pack of 2.0 KiB: read\ncache: 10 chunks, 4.0 KiB, 1 damaged\n"+
		"NAME      DIGEST        WORKSPACE  PROBLEM\nweb, app  "+d.Short()+"  default    pack 1234 is missing\n", out)
	require.Contains(t, err, "brisk: 1 image is damaged\n")
	require.Contains(t, err, "Import, pull or build again what you need")
	f.Checked.Damaged, f.Checked.Ledger = nil, []string{"default/holds/x"}
	code, _, err = brisk(nil, "store", "fsck", "--data", data)
	require.Equal(t, 70, code)
	require.Contains(t, err, "--repair")
	code, _, err = brisk(nil, "store", "fsck", "--repair", "--data", data)
	require.Equal(t, 0, code, err)
}

func TestStoreGC(t *testing.T) {
	var asked []api.CollectRequest
	f := &apitest.Fake{OnCollect: func(_ context.Context, q api.CollectRequest, _ func(string, int64, int64)) (api.Collected, error) {
		asked = append(asked, q)
		return api.Collected{
			DryRun: q.DryRun, Bytes: 3 << 20, MS: 12,
			Freed:   []api.Garbage{{Kind: "packs and metadata", Count: 1200, Bytes: 3 << 20}, {Kind: "functions", Count: 1}},
			Waiting: api.Garbage{Count: 1, Bytes: 2048}, Held: api.Garbage{Count: 2, Bytes: 1}, Notes: []string{"nothing of workspace x is deleted: why"},
		}, nil
	}}
	data := serve(t, f)
	code, out, err := brisk(nil, "store", "gc", "--data", data)
	require.Equal(t, 0, code, err)
	require.Equal(t, `KIND                COUNT  BYTES
packs and metadata  1,200  3.0 MiB
functions           1      -
freed 3.0 MiB in 12.0 ms
1 object, 2.0 KiB, will go after their grace period
2 objects, 1 B, are held by work in progress or mounted images
`, out)
	require.Contains(t, err, "nothing of workspace x is deleted: why")
	code, out, _ = brisk(nil, "store", "gc", "--dry-run", "--grace", "90m", "--data", data)
	require.Equal(t, 0, code)
	require.Contains(t, out, "would free 3.0 MiB")
	code, out, _ = brisk(nil, "store", "gc", "--data", data, "--json")
	require.Equal(t, 0, code)
	require.Contains(t, out, `"bytes": 3145728`)
	require.Equal(t, []api.CollectRequest{{}, {DryRun: true, Grace: 5400}, {}}, asked)
	code, _, err = brisk(nil, "store", "gc", "--grace", "-1s", "--data", data)
	require.Equal(t, 2, code)
	require.Contains(t, err, "--grace -1s: want a duration")
}

func TestDownWithNothingToStop(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	code, out, err := brisk(nil, "down", "--data", t.TempDir())
	require.Equal(t, []any{0, "", ""}, []any{code, out, err})
	code, out, _ = brisk(nil, "down", "--data", t.TempDir(), "--json")
	require.Equal(t, 0, code)
	require.JSONEq(t, `{"stopped":false}`, out)
}

func TestPythonThatIsNotThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.py")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	old := filepath.Join(t.TempDir(), "old")
	require.NoError(t, os.WriteFile(old, []byte("#!/bin/sh\n"), 0o700)) // prints nothing: older than 3.9
	for python, want := range map[string]string{
		"/nowhere/python3": "there is no /nowhere/python3",
		"no-such-python":   "there is no no-such-python",
		old:                old + " is older than Python 3.9",
	} {
		t.Setenv("BRISK_PYTHON", python)
		code, _, err := brisk(nil, "run", file)
		require.Equal(t, 6, code)
		require.Contains(t, err, want)
	}
}

func TestBar(t *testing.T) {
	for _, tt := range []struct {
		start, length, total float64
		want                 string
	}{
		{0, 10, 10, "██████████"},
		{0, 0, 10, "█"},
		{10, 0, 10, "         █"},
		{5, 2, 10, "     ██"},
		{9.9, 0.1, 10, "         █"},
		{0, 0, 0, ""},
	} {
		require.Equal(t, tt.want, bar(tt.start, tt.length, tt.total, 10), "%+v", tt)
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		require.Equal(t, want, count(n))
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 << 30: "5.0 GiB"} {
		require.Equal(t, want, bytesText(n))
	}
	for v, want := range map[float64]string{0.1234: "0.12 ms", 12.34: "12.3 ms", 123.4: "123 ms", 12345: "12.3 s"} {
		require.Equal(t, want, ms(v))
	}
}
