package remote

import (
	"sync/atomic"

	"brisk.dev/brisk/internal/fault"
)

// Stats are counts since New.
type Stats struct {
	Requests  int64 // attempts and second requests
	Bytes     int64 // read
	Failures  int64 // requests that got no answer, or a broken one
	Retries   int64 // attempts after the first
	Hedges    int64 // second requests
	HedgesWon int64 // that were faster
	Merged    int64 // reads that another's request served
	Refused   int64 // attempts that were not made because the origin is down
	Denied    int64 // requests that the origin refused for want of good credentials, or the like
}

type counters struct {
	requests, bytes, failures, retries, hedges, hedgesWon, merged, refused, denied atomic.Int64
}

func (c *counters) note(err error) {
	switch {
	case fault.Is(err, fault.Unavailable):
		c.failures.Add(1)
	case fault.Is(err, fault.Machine):
		c.denied.Add(1)
	}
}

// Stats gives the counts.
func (o *Origin) Stats() Stats {
	c := &o.counts
	return Stats{
		Requests: c.requests.Load(), Bytes: c.bytes.Load(), Failures: c.failures.Load(), Retries: c.retries.Load(),
		Hedges: c.hedges.Load(), HedgesWon: c.hedgesWon.Load(), Merged: c.merged.Load(), Refused: c.refused.Load(), Denied: c.denied.Load(),
	}
}
