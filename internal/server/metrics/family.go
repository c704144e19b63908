package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"brisk.dev/brisk/internal/trace"
)

// kind is a type of metric, as the text format calls it.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
	summary   kind = "summary" // without quantiles: a sum and a count
)

// other is the value of a label for what its table does not list.
const other = "other"

// label is a dimension of a family, with all values that it can have.
type label struct {
	name   string
	values []string // nil: one value at a time, which is this program's own
}

// put hands on one number, with the values of the family's labels.
type put func(v float64, values ...string)

// family is one metric.
type family struct {
	name   string
	kind   kind
	help   string // one sentence, without the full stop
	labels []label

	read   func(r *Reading, put put)                                          // of counters and gauges
	spread func(r *Reading, put func(d trace.Distribution, values ...string)) // of histograms and summaries
}

// chapter is families that belong together.
type chapter struct {
	title, text string
	families    []family
}

// desc is the family as the library has it.
func (f *family) desc() *prometheus.Desc {
	var names []string
	for _, l := range f.labels {
		names = append(names, l.name)
	}
	return prometheus.NewDesc(f.name, f.help+".", names, nil)
}

// known gives the values as the tables have them.
func (f *family) known(values []string) []string {
	values = slices.Clone(values)
	for i, l := range f.labels {
		if l.values != nil && !slices.Contains(l.values, values[i]) {
			values[i] = other
		}
	}
	return values
}

// sample is one series of a family.
type sample struct {
	values []string
	number float64
	spread trace.Distribution
}

// samples reads a family. What comes under the same values is added up.
func (f *family) samples(r *Reading) (l []*sample) {
	by := map[string]*sample{}
	get := func(values []string) *sample {
		values = f.known(values)
		key := strings.Join(values, "\x00")
		if by[key] == nil {
			by[key] = &sample{values: values}
			l = append(l, by[key])
		}
		return by[key]
	}
	if f.spread != nil {
		f.spread(r, func(d trace.Distribution, values ...string) { get(values).spread.Add(d) })
	} else {
		f.read(r, func(v float64, values ...string) { get(values).number += v })
	}
	return l
}

// metric makes a series what the library wants.
func (f *family) metric(desc *prometheus.Desc, s *sample) prometheus.Metric {
	switch f.kind {
	case histogram:
		buckets := map[float64]uint64{}
		for i, bound := range trace.Bounds {
			buckets[bound] = s.spread.Buckets[i]
		}
		return prometheus.MustNewConstHistogram(desc, s.spread.Count, s.spread.Sum, buckets, s.values...)
	case summary:
		return prometheus.MustNewConstSummary(desc, s.spread.Count, s.spread.Sum, nil, s.values...)
	case counter:
		return prometheus.MustNewConstMetric(desc, prometheus.CounterValue, s.number, s.values...)
	}
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, s.number, s.values...)
}
