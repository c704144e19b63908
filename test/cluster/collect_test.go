package cluster

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// gc is what `brisk store gc --json` says.
type gc struct {
	Bytes   int64
	Waiting struct{ Count, Bytes int64 }
	Held    struct{ Count, Bytes int64 }
	Notes   []string
}

// Machines import, remove and collect at one bucket at once. Nothing that an image needs goes, and what
// nobody needs waits for its grace period.
func TestMachinesCollectAtOnce(t *testing.T) {
	l := newLab(t)
	c, a := l.machine(1, "c"), l.machine(2, "a")
	c.up("--store", l.url)
	want := c.image("kept")
	a.brisk("node", "join", "--node", "a", strings.TrimSpace(c.brisk("node", "token")))
	a.up()
	c.image("doomed")
	a.brisk("image", "rm", "doomed")

	var wg sync.WaitGroup
	wants := make([]string, 2)
	for i, m := range []*machine{c, a} {
		wg.Go(func() { wants[i] = m.image("of-" + m.name) })
		wg.Go(func() {
			for range 3 {
				var r gc
				m.ask(&r, "store", "gc")
				if len(r.Notes) > 0 {
					t.Errorf("%s: %v", m.name, r.Notes)
				}
			}
		})
	}
	wg.Wait()
	for _, m := range []*machine{c, a} {
		require.Equal(t, want, m.read("kept"))
		require.Equal(t, wants[0], m.read("of-c"))
		require.Equal(t, wants[1], m.read("of-a"))
		var r gc
		m.ask(&r, "store", "gc", "--dry-run")
		require.Empty(t, r.Notes)
		require.Greater(t, r.Waiting.Bytes, int64(dataSize), "the removed image waits")
	}
	code, _, errs := a.try("store", "fsck", "--full")
	require.Equal(t, 0, code, errs)
}
