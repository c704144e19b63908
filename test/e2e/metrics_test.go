package e2e

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// numbers are metrics, by name and labels as the text has them.
type numbers map[string]float64

func readMetrics(t *testing.T, text string) numbers {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err, "%s", text)
	n := numbers{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				n[key] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				n[key] = m.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				n[key] = float64(m.GetHistogram().GetSampleCount())
			case dto.MetricType_SUMMARY:
				n[key] = float64(m.GetSummary().GetSampleCount())
			default:
				require.Fail(t, "of no known type", name)
			}
		}
	}
	return n
}

// A server counts what happens on it, and names nobody.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.Contains(t, s.refused(t, 7, "metrics").Message, "no server answers", "it starts none")
	file := s.write(t, "counted.py", `
import brisk
app = brisk.App("secretapp")

@app.function(block_network=True, scaledown_window=0.2)
def secretfunction(n):
    if n == 0:
        raise ValueError("secretvalue")
    return n

@app.local_entrypoint()
def main(n: int):
    try:
        secretfunction.remote(n)
    except ValueError:
        pass
`)
	s.ok(t, "run", file, "--n", "0")
	s.ready(t, "secretapp")
	s.cooled(t, "secretapp")
	s.ok(t, "run", file, "--n", "1")
	s.ok(t, "run", "--image", s.debian(t), "--block-network", "--", "true")
	s.ok(t, "store", "gc")

	text := s.ok(t, "metrics")
	require.NotContains(t, text, "secret")
	require.NotContains(t, text, s.debian(t)[:12])
	n := readMetrics(t, text)
	for key, want := range map[string]float64{
		"brisk_calls_total result=raised":                1,
		"brisk_calls_total result=succeeded":             1,
		"brisk_calls_total result=failed":                0,
		"brisk_call_wait_seconds start=cold":             1,
		"brisk_call_wait_seconds start=restored":         1,
		"brisk_call_run_seconds":                         2,
		"brisk_instance_start_seconds start=cold":        1,
		"brisk_instance_start_step_seconds step=import":  1,
		"brisk_instance_start_step_seconds step=restore": 1,
		"brisk_snapshots_total result=made":              1,
		"brisk_containers_finished_total":                1,
		"brisk_gc_runs_total":                            1,
		"brisk_gc_incomplete_runs_total":                 0,
		"brisk_cache_refused_chunks_total":               0,
		"brisk_cache_damaged_chunks_total":               0,
		"brisk_instance_start_failures_total":            0,
		"brisk_chunk_damaged_total source=origin":        0,
		"brisk_calls_running":                            0,
		"brisk_scrub_completed_timestamp_seconds":        0,
	} {
		require.Contains(t, n, key)
		require.Equal(t, want, n[key], key)
	}
	for _, positive := range []string{
		"brisk_cache_chunks", "brisk_cache_bytes", "brisk_cache_limit_bytes", "brisk_cache_pinned_bytes", "brisk_cache_reserve_bytes", "brisk_disk_free_bytes",
		"brisk_chunk_reads_total source=cache", "brisk_chunk_reads_total source=origin", "brisk_chunk_read_bytes_total source=origin",
		"brisk_profile_starts_total", "brisk_profile_writes_total", "brisk_gc_completed_timestamp_seconds", "process_resident_memory_bytes",
	} {
		require.Positive(t, n[positive], positive)
	}
	require.NotContains(t, n, "brisk_origin_up", "the store is a directory")
	for key := range n {
		require.NotContains(t, key, "=other", "every word is in the tables")
	}

	// As Prometheus sees it, over a socket that does nothing else.
	p := s.begin(t, "metrics", "--listen", "127.0.0.1:0")
	url := strings.TrimPrefix(<-p.lines, "serving at ")
	res, err := http.Get(url)
	require.NoError(t, err)
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, float64(1), readMetrics(t, string(b))["brisk_calls_total result=raised"])
	res, err = http.Get(strings.Replace(url, "/metrics", "/v1/info", 1))
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, http.StatusNotFound, res.StatusCode)
	s.ok(t, "down")
	res, err = http.Get(url)
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	p.signal(t, syscall.SIGINT)
	require.Equal(t, 0, p.wait(t).code)
}
