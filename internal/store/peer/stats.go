package peer

import (
	"maps"
	"slices"
	"time"
)

// State is whether a peer is asked for chunks.
type State string

// The states.
const (
	Ready     State = "ready"
	Resting   State = "resting"   // it failed, and is left alone for a while
	Convicted State = "convicted" // it lied, and is left alone for long
	Gone      State = "gone"      // not alive, or no member any more
)

// Stats are counts since New, in all and for each peer.
type Stats struct {
	Fetches   int64 `json:"fetches"`   // chunks that peers were asked for
	Hits      int64 `json:"hits"`      // that came from one
	Absent    int64 `json:"absent"`    // that nobody had
	Unasked   int64 `json:"unasked"`   // for which nobody could be asked
	Hedges    int64 `json:"hedges"`    // second requests because the first was slow
	Unwanted  int64 `json:"unwanted"`  // answers that came when another had been taken: most are to second requests
	Wasted    int64 `json:"wasted"`    // bytes of them
	Served    int64 `json:"served"`    // chunks given to others
	Bytes     int64 `json:"bytes"`     // of them
	Refused   int64 `json:"refused"`   // requests of others beyond the limits
	Directory int   `json:"directory"` // chunks that are known to be somewhere
	Peers     []One `json:"peers"`     // by name
}

// One is one peer.
type One struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	State   State  `json:"state"`
	Reason  string `json:"reason,omitempty"`   // of the last failure
	Until   int64  `json:"until_ms,omitempty"` // it is left alone, from now

	Reads    int64   `json:"reads"`    // chunks from it
	Bytes    int64   `json:"bytes"`    // of them, sealed
	Misses   int64   `json:"misses"`   // chunks that it did not have
	Busy     int64   `json:"busy"`     // requests that were too many
	Failures int64   `json:"failures"` // requests and connections
	Lies     int64   `json:"lies"`     // answers that were not what was asked for
	P50      float64 `json:"p50_ms"`   // of its last answers; 0 = none

	ServedChunks int64 `json:"served_chunks"` // to it
	ServedBytes  int64 `json:"served_bytes"`
}

// Stats gives the counts.
func (p *Peers) Stats() Stats {
	s := Stats{
		Fetches: p.fetches.Load(), Hits: p.hits.Load(), Absent: p.absent.Load(), Unasked: p.unasked.Load(), Hedges: p.hedges.Load(),
		Unwanted: p.unwanted.Load(), Wasted: p.wasted.Load(),
		Served: p.given.Load(), Bytes: p.givenBytes.Load(), Refused: p.refused.Load(), Directory: p.directory.len(),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.table.Load()
	for _, name := range slices.Sorted(maps.Keys(p.histories)) {
		h := p.histories[name]
		one := One{
			Name: name, State: Gone,
			Reads: h.reads.Load(), Bytes: h.bytes.Load(), Misses: h.misses.Load(), Busy: h.busy.Load(),
			Failures: h.failures.Load(), Lies: h.lies.Load(),
			P50:          float64(h.latency.median.Load()) / float64(time.Millisecond),
			ServedChunks: h.servedChunks.Load(), ServedBytes: h.servedBytes.Load(),
		}
		if m := t.find(name); m != nil {
			one.Address, one.State = m.member.Address, Resting
			if m.link.Load() != nil {
				one.State = Ready
			}
		}
		h.mu.Lock()
		one.Reason = h.reason
		if left := time.Until(h.until); left > 0 {
			one.Until = left.Milliseconds()
			if h.lying && one.State != Gone {
				one.State = Convicted
			}
		}
		h.mu.Unlock()
		s.Peers = append(s.Peers, one)
	}
	return s
}
