package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cycles.py runs until so many instances have lived and gone; each has a cold or
// restored call and a warm one.
const cycles = `
import os, sys, time
import brisk

app = brisk.App("cycles")

@app.function(scaledown_window=0.1)
def restored():
    with open("/tmp/file", "w") as f:
        f.write("x" * 100_000)
    print("hello")
    return os.environ["BRISK_INSTANCE_ID"]

@app.function(scaledown_window=0.1, enable_memory_snapshot=False)
def cold():
    return os.environ["BRISK_INSTANCE_ID"]

def cycle(f, seen):
    one, two = f.remote(), f.remote()
    seen.update((one, two))
    time.sleep(0.15)  # longer than the scaledown window
    return one == two

@app.local_entrypoint()
def main(restores: int, colds: int):
    seen, warm = set(), 0
    while len(seen) < restores:
        warm += cycle(restored, seen)
    more = set()
    while len(more) < colds:
        warm += cycle(cold, more)
    print(len(seen), len(more), warm, file=sys.stderr)
`

// settled waits until nothing runs but what is kept for the next call, and counts
// what there is then.
func (s *site) settled(t *testing.T, app string) *census {
	t.Helper()
	s.ready(t, app)
	s.cooled(t, app)
	var c *census
	// Destroying takes its time, and so do the namespaces that are made in stock.
	last, same := "", 0
	eventually(t, "the machine comes to rest", func() bool {
		c = s.census(t)
		if now := fmt.Sprint(c.counts()); now == last {
			same++
		} else {
			last, same = now, 0
		}
		return same > 20
	})
	return c
}

func TestNothingLeaksOver100Cycles(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			restores, colds := "75", "25"
			if mode.old {
				restores, colds = "15", "5" // the mounts are what differs, and those are made once
			}
			s := newSite(t, mode.env...)
			file := s.write(t, "cycles.py", cycles)
			s.ok(t, "run", file, "--restores", "1", "--colds", "1")
			s.settled(t, "cycles")
			s.ok(t, "run", file, "--restores", "3", "--colds", "1")
			before := s.settled(t, "cycles")

			r := s.brisk(t, "run", file, "--restores", restores, "--colds", colds)
			require.Equal(t, 0, r.code, "%s", r)
			t.Logf("instances restored, cold, and of those with a warm call: %s", strings.TrimSpace(r.err))
			starts := map[string]int{}
			var all []call
			s.ask(t, &all, "calls", "--limit", "150")
			for _, c := range all {
				starts[c.Start]++
			}
			t.Logf("starts of the last 150 calls: %v", starts)

			after := s.settled(t, "cycles")
			t.Logf("at rest: %v", after.counts())
			require.Empty(t, after.beside(before))

			s.ok(t, "down")
			require.Empty(t, s.census(t).all())
			require.NoDirExists(t, s.runDir())
			require.Empty(t, groupsBelow(s.group()))
		})
	}
}
