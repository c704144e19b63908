package server

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// A server is idle for most of its life, and what it allocated while it was not stays
// with it for minutes, since the collector runs when there is new garbage. So an idle one
// collects, and gives the system back what it does not use.
const (
	idleLook   = 5 * time.Second
	idleGrowth = 4 << 20 // bytes that are worth a collection
)

// thrift gives memory back while the server has nothing to do.
type thrift struct {
	active func() int // what is under way

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (t *thrift) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	t.wg.Go(func() {
		tick := time.NewTicker(idleLook)
		defer tick.Stop()
		var kept uint64 // what there was after the last collection
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if t.active() == 0 && resident() > kept+idleGrowth {
				debug.FreeOSMemory()
				kept = resident()
			}
		}
	})
}

func (t *thrift) close() {
	t.cancel()
	t.wg.Wait()
}

// resident is how many bytes the runtime has of the system.
func resident() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}
