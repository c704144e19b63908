package server

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What a server has allocated and dropped goes back when nothing is under way, and not before.
func TestThrift(t *testing.T) {
	const size = 64 << 20
	waste := func() uint64 {
		b := make([]byte, size)
		for i := 0; i < size; i += 4096 {
			b[i] = 1
		}
		runtime.KeepAlive(b)
		return resident()
	}
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		var active atomic.Int64
		active.Store(1)
		th := &thrift{active: func() int { return int(active.Load()) }}
		th.begin()
		defer th.close()
		before := waste()
		time.Sleep(idleLook + time.Second)
		synctest.Wait()
		require.Greater(t, resident(), before-size/2)
		active.Store(0)
		time.Sleep(idleLook)
		synctest.Wait()
		require.Less(t, resident(), before-size/2)
	})
}
