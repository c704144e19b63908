package metrics

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/peer"
	"brisk.dev/brisk/internal/store/remote"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/trace"
)

// full is a reading of a server that has everything.
func full() Reading {
	var h trace.Histogram
	h.Observe(90 * time.Millisecond)
	h.Observe(2 * time.Second)
	d := h.Read()
	return Reading{
		Version: "1.2",
		Cache:   store.CacheStats{Chunks: 10, Bytes: 40960, Hits: 7, Misses: 3, Scrubbed: 4, ScrubDamaged: 1},
		Reserve: 1 << 30, DiskFree: 5 << 30, Mended: 1,
		Scrub:   slab.Coverage{Ended: time.Unix(1_800_000_000, 0), Done: 5, Total: 9},
		Store:   store.Stats{OriginReads: 3, OriginBytes: 300, DamagedAnswers: 2},
		Network: &Network{Stats: remote.Stats{Requests: 12, Refused: 2}, Up: true},
		Peers: &peer.Stats{Hits: 2, Unwanted: 1, Wasted: 99, Peers: []peer.One{
			{Name: "secret-one", State: peer.Ready, Bytes: 10, Lies: 1}, {Name: "secret-two", State: peer.Gone, Bytes: 5},
		}},
		Profiles: image.ProfileStats{Starts: 3, ListedBytes: 100, UsedBytes: 60},
		Node:     node.Stats{Lazy: 2, Native: 1, Filled: map[node.Filling]int64{node.Filled: 1}},
		Garbage:  Garbage{Collections: 2, Seconds: 1.5, Freed: map[string]Freed{"cached chunks": {3, 30}, "secret": {1, 1}, "mystery": {4, 4}}},
		Calls: scheduler.Stats{
			Running: 1, Instances: map[string]int{"busy": 1, "idle": 0}, Calls: map[scheduler.CallState]int64{scheduler.CallRaised: 2},
			Waits: map[string]trace.Distribution{"warm": d}, Starts: map[string]trace.Distribution{"cold": d}, Runs: d,
			Steps: map[string]trace.Distribution{"import": d, "secret-a": d, "secret-b": d},
		},
	}
}

// text is what Prometheus gets.
func text(t *testing.T, r Reading) string {
	w := httptest.NewRecorder()
	New(func() Reading { return r }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Header().Get("Content-Type"), "text/plain")
	return w.Body.String()
}

func TestText(t *testing.T) {
	got := strings.Split(text(t, full()), "\n")
	for _, want := range []string{
		`brisk_info{version="1.2"} 1`,
		`brisk_disk_free_bytes 5.36870912e+09`,
		`brisk_cache_reads_total{result="hit"} 7`,
		`brisk_cache_reads_total{result="miss"} 3`,
		`brisk_cache_reserve_bytes 1.073741824e+09`,
		`brisk_scrub_damaged_chunks_total 1`,
		`brisk_scrub_completed_timestamp_seconds 1.8e+09`,
		`brisk_chunk_reads_total{source="origin"} 3`,
		`brisk_chunk_damaged_total{source="peer"} 2`,
		`brisk_origin_up 1`,
		`brisk_origin_errors_total{reason="down"} 2`,
		`brisk_peers{state="gone"} 1`,
		`brisk_peers{state="ready"} 1`,
		`brisk_peers{state="resting"} 0`,
		`brisk_peer_fetched_bytes_total 15`,
		`brisk_peer_unwanted_bytes_total 99`,
		`brisk_peer_errors_total{reason="lied"} 1`,
		`brisk_prefetch_listed_bytes_total{used="no"} 40`,
		`brisk_prefetch_listed_bytes_total{used="yes"} 60`,
		`brisk_mounted_images{kind="lazy"} 2`,
		`brisk_fills_total{result="complete"} 1`,
		`brisk_gc_freed_bytes_total{kind="cached chunks"} 30`,
		`brisk_gc_freed_bytes_total{kind="other"} 5`, // what no table lists comes together
		`brisk_gc_completed_timestamp_seconds 0`,
		`brisk_calls_total{result="raised"} 2`,
		`brisk_calls_total{result="failed"} 0`,
		`brisk_call_wait_seconds_bucket{start="warm",le="0.05"} 0`,
		`brisk_call_wait_seconds_bucket{start="warm",le="0.1"} 1`,
		`brisk_call_wait_seconds_bucket{start="warm",le="+Inf"} 2`,
		`brisk_call_wait_seconds_sum{start="warm"} 2.09`,
		`brisk_instance_start_seconds_count{start="cold"} 2`,
		`brisk_instance_start_step_seconds_count{step="import"} 2`,
		`brisk_instance_start_step_seconds_count{step="other"} 4`,
	} {
		assert.Contains(t, got, want)
	}
	assert.NotContains(t, strings.Join(got, "\n"), "secret")
}

// A machine that is in no cluster, has a directory and has done nothing.
func TestTextOfNothing(t *testing.T) {
	got := text(t, Reading{Version: "1"})
	assert.NotContains(t, got, "brisk_origin_")
	assert.NotContains(t, got, "brisk_peer")
	assert.Contains(t, got, "\nbrisk_scrub_completed_timestamp_seconds 0\n")
	assert.Contains(t, got, "\nprocess_resident_memory_bytes ")
	assert.Contains(t, got, "\ngo_goroutines ")
}

// The names keep to the conventions of Prometheus, and the tables to what is read.
func TestNamesAndLabels(t *testing.T) {
	seen := map[string]bool{}
	tables := map[string]*family{}
	for _, c := range chapters {
		for i := range c.families {
			f := &c.families[i]
			assert.False(t, seen[f.name], "%s is there twice", f.name)
			seen[f.name] = true
			tables[f.name] = f
			assert.Regexp(t, `^brisk_[a-z_]+$`, f.name)
			assert.Equal(t, f.kind == counter, strings.HasSuffix(f.name, "_total"), "%s: counters, and only they, end with _total", f.name)
			assert.NotRegexp(t, `\.$|^[a-z]`, f.help, f.name)
			assert.NotRegexp(t, `_(ms|kb|mb|kib|mib|milliseconds|kilobytes)(_|$)`, f.name, "base units")
			assert.Equal(t, f.kind == histogram || f.kind == summary, f.spread != nil, f.name)
			for _, l := range f.labels {
				assert.Regexp(t, `^[a-z_]+$`, l.name)
				assert.True(t, l.values != nil || f.name == "brisk_info", "%s: all values of %s are to be listed", f.name, l.name)
			}
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text(t, full())))
	require.NoError(t, err)
	for name := range seen {
		assert.Contains(t, families, name)
	}
	for name, got := range families {
		f := tables[name]
		if f == nil {
			assert.Regexp(t, `^(go|process)_`, name)
			continue
		}
		assert.Equal(t, strings.ToUpper(string(f.kind)), got.GetType().String(), name)
		for _, m := range got.GetMetric() {
			require.Len(t, m.GetLabel(), len(f.labels), name)
			for _, l := range m.GetLabel() {
				i := slices.IndexFunc(f.labels, func(x label) bool { return x.name == l.GetName() })
				require.GreaterOrEqual(t, i, 0, name)
				if values := f.labels[i].values; values != nil {
					assert.Contains(t, append([]string{other}, values...), l.GetValue(), name)
				}
			}
		}
	}
}

// The table lists the steps that the code begins, and no others.
func TestStepsAreKnown(t *testing.T) {
	begin := regexp.MustCompile(`(?:trace\.Begin\(ctx, |[Tt]race\.Add\()"([^"]+)"`)
	found := map[string]bool{}
	for _, dir := range []string{"node", "sandbox/gvisor", "image"} {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		require.NoError(t, err)
		for _, name := range files {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, m := range begin.FindAllSubmatch(b, -1) {
				found[string(m[1])] = true
			}
		}
	}
	for _, elsewhere := range []string{"sandbox checkpoint", "start"} { // of snapshots and of containers
		delete(found, elsewhere)
	}
	require.Contains(t, found, "mount image")
	for step := range found {
		assert.Contains(t, steps, step, "a new step of starts gets a word in the table")
	}
	for _, step := range steps {
		assert.True(t, found[step], "nothing begins the step %q", step)
	}
}

// TestPage keeps docs/metrics.md equal to the tables. With UPDATE_DOCS=1 it writes them into the page.
func TestPage(t *testing.T) {
	const mark = "\n<!-- From here on made from the tables by `UPDATE_DOCS=1 go test ./internal/server/metrics -run TestPage`; do not edit. -->\n"
	path := filepath.Join("..", "..", "..", "docs", "metrics.md")
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	head, _, ok := bytes.Cut(have, []byte(mark))
	require.True(t, ok)
	want := string(head) + mark + page()
	if os.Getenv("UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(have), "docs/metrics.md is older than the tables")
}

func page() string {
	var b strings.Builder
	for _, c := range chapters {
		fmt.Fprintf(&b, "\n## %s\n\n", c.title)
		if c.text != "" {
			b.WriteString(c.text + "\n\n")
		}
		b.WriteString("| name | type | labels | what it is |\n|---|---|---|---|\n")
		for _, f := range c.families {
			var labels []string
			for _, l := range f.labels {
				text := "`" + l.name + "`"
				if l.values != nil {
					text += ": " + strings.Join(l.values, ", ")
				}
				labels = append(labels, text)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, strings.Join(labels, "; "), f.help)
		}
	}
	return b.String()
}
