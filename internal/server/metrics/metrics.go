package metrics

import (
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// New makes the answer to GET /v1/metrics. read is called for each, by one goroutine at a time.
func New(read func() Reading) http.Handler {
	all := prometheus.NewRegistry()
	all.MustRegister(&reader{read: read}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// reader is the tables as the library wants them.
type reader struct {
	mu   sync.Mutex
	read func() Reading
}

// Describe implements prometheus.Collector.
func (*reader) Describe(to chan<- *prometheus.Desc) {
	for _, c := range chapters {
		for i := range c.families {
			to <- c.families[i].desc()
		}
	}
}

// Collect implements prometheus.Collector.
func (c *reader) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.read()
	for _, chapter := range chapters {
		for i := range chapter.families {
			f := &chapter.families[i]
			desc := f.desc()
			for _, s := range f.samples(&r) {
				to <- f.metric(desc, s)
			}
		}
	}
}
