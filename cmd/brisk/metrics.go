package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
)

func (a *app) metricsCommand() *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use:   "metrics [--listen ADDRESS]",
		Short: "Print what the server counts, or serve it to Prometheus",
		Long: `Print what the server counts, in the text format of Prometheus: docs/metrics.md
says what there is. It starts no server.

With --listen it serves that, and nothing else, at http://ADDRESS/metrics until it
is stopped, also while no server runs. Whoever reaches the address can read it,
without being asked who he is: the numbers are of the whole machine and name no
images or users.

Exit status: 0; 7 if no server runs.`,
		Example: `  brisk metrics | grep brisk_cache
  brisk metrics --listen 127.0.0.1:7721`,
		Args: cobra.NoArgs,
		RunE: work(func(ctx context.Context, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			if listen != "" {
				return a.serveMetrics(ctx, c, listen)
			}
			return a.printMetrics(ctx, c)
		}),
	}
	c.Flags().StringVar(&listen, "listen", "", "`address` (host:port) to serve at")
	return c
}

func (a *app) printMetrics(ctx context.Context, c *api.Client) error {
	text, err := c.Metrics(ctx)
	if err != nil {
		return err
	}
	if !a.json {
		_, err := a.out.Write(text)
		return err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return fault.Wrap(err, "understand", "the metrics")
	}
	l := []metric{}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		l = append(l, metricOf(families[name]))
	}
	return a.answer(l, func(io.Writer) {})
}

// metric is one of them in JSON.
type metric struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Help    string   `json:"help"`
	Samples []sample `json:"samples"`
}

// sample has a value, or what was counted and its sum.
type sample struct {
	Labels  map[string]string `json:"labels"`
	Value   *float64          `json:"value,omitempty"`
	Count   *uint64           `json:"count,omitempty"`
	Sum     *float64          `json:"sum,omitempty"`
	Buckets []bucket          `json:"buckets,omitempty"`
}

type bucket struct {
	AtMost float64 `json:"at_most"`
	Count  uint64  `json:"count"`
}

func metricOf(f *dto.MetricFamily) metric {
	types := map[dto.MetricType]string{dto.MetricType_COUNTER: "counter", dto.MetricType_GAUGE: "gauge", dto.MetricType_HISTOGRAM: "histogram", dto.MetricType_SUMMARY: "summary"}
	out := metric{Name: f.GetName(), Type: types[f.GetType()], Help: f.GetHelp()}
	for _, m := range f.GetMetric() {
		s := sample{Labels: map[string]string{}}
		for _, l := range m.GetLabel() {
			s.Labels[l.GetName()] = l.GetValue()
		}
		switch {
		case m.Counter != nil:
			s.Value = m.Counter.Value
		case m.Gauge != nil:
			s.Value = m.Gauge.Value
		case m.Summary != nil:
			s.Count, s.Sum = m.Summary.SampleCount, m.Summary.SampleSum
		case m.Histogram != nil:
			s.Count, s.Sum = m.Histogram.SampleCount, m.Histogram.SampleSum
			for _, b := range m.Histogram.GetBucket()[:len(m.Histogram.GetBucket())-1] { // the last is of all, without a bound
				s.Buckets = append(s.Buckets, bucket{b.GetUpperBound(), b.GetCumulativeCount()})
			}
		}
		out.Samples = append(out.Samples, s)
	}
	return out
}

// serveMetrics answers until ctx ends.
func (a *app) serveMetrics(ctx context.Context, c *api.Client, address string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return (&fault.Error{Class: fault.Invalid, Op: "listen at", Object: address, Err: err}).
			WithHint("Name a host and a port that are free, such as 127.0.0.1:7721.")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		text, err := c.Metrics(r.Context())
		if err != nil { // then Prometheus has the machine as down
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		_, _ = w.Write(text)
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	fmt.Fprintf(a.out, "serving at http://%s/metrics\n", l.Addr())
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fault.Wrap(err, "serve at", address)
	}
	return nil
}
