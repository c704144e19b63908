package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// call is a call's record, as `brisk calls show --json` gives it.
type call struct {
	ID       string     `json:"id"`
	App      string     `json:"app"`
	Function string     `json:"function"`
	Instance string     `json:"instance"`
	Start    string     `json:"start"`
	State    string     `json:"state"`
	MS       float64    `json:"ms"`
	Error    *complaint `json:"error"`
	Steps    []step     `json:"steps"`
	Origin   *struct {
		OriginBytes int64 `json:"origin_bytes"`
		CacheBytes  int64 `json:"cache_bytes"`
		ImageBytes  int64 `json:"image_bytes"`
	} `json:"origin"`
}

type step struct {
	Name  string  `json:"name"`
	Start float64 `json:"start_ms"`
	MS    float64 `json:"ms"`
	Note  string  `json:"note"`
}

// calls gives the records of an app's calls, newest first, steps included.
func (s *site) calls(t *testing.T, app string) (l []call) {
	t.Helper()
	var all []call
	s.ask(t, &all, "calls", "--limit", "500")
	for _, c := range all {
		if c.App == app {
			var whole call
			s.ask(t, &whole, "calls", "show", c.ID)
			l = append(l, whole)
		}
	}
	return l
}

// lastCall is the record of an app's latest call.
func (s *site) lastCall(t *testing.T, app string) call {
	t.Helper()
	l := s.calls(t, app)
	require.NotEmpty(t, l, "no call of %s is on record", app)
	return l[0]
}

// step finds a step of a call by its name.
func (c call) step(t *testing.T, name string) step {
	t.Helper()
	var names []string
	for _, s := range c.Steps {
		if s.Name == name {
			return s
		}
		names = append(names, s.Name)
	}
	require.FailNow(t, "no such step", "%s: %s", name, strings.Join(names, ", "))
	return step{}
}

// instance is one that lives, as `brisk ps --json` gives it.
type instance struct {
	ID       string `json:"id"`
	App      string `json:"app"`
	Function string `json:"function"`
	State    string `json:"state"`
	Start    string `json:"start"`
	Calls    int    `json:"calls"`
	Memory   int64  `json:"memory_max"`
}

// instances gives those of an app, in a state if it is named.
func (s *site) instances(t *testing.T, app, state string) (l []instance) {
	t.Helper()
	var all []instance
	s.ask(t, &all, "ps")
	for _, i := range all {
		if i.App == app && (state == "" || i.State == state) {
			l = append(l, i)
		}
	}
	return l
}

// ready waits until the snapshot of an app's only function is made, and a sandbox
// is created for the next start.
func (s *site) ready(t *testing.T, app string) {
	t.Helper()
	eventually(t, "a snapshot of "+app+" is made and a sandbox is created for it", func() bool {
		return len(s.instances(t, app, "created")) == 1
	})
}

// cooled waits until no instance of an app is left that has had a call.
func (s *site) cooled(t *testing.T, app string) {
	t.Helper()
	eventually(t, "the idle instances of "+app+" go", func() bool {
		return len(s.instances(t, app, "idle"))+len(s.instances(t, app, "busy")) == 0
	})
}

// modes are the two ways to mount images, with the environment that selects them.
var modes = []struct {
	name string
	old  bool
	env  []string
}{
	{"this kernel's way", false, []string{"BRISK_COMPAT="}},
	{"older kernels' way", true, []string{"BRISK_COMPAT=1"}},
}

const heavy = `
import argparse, asyncio, ctypes, decimal, email, http.server, json, logging, sqlite3, ssl, unittest, xml.dom.minidom
import brisk

app = brisk.App("heavy")
print("the module is imported", flush=True)

@app.function(block_network=True, scaledown_window=0.2)
def double(n):
    print("doubling", n)
    return 2 * n

@app.local_entrypoint()
def main(first: int, second: float = 1.5, loud: bool = False):
    print(first, second, loud)
    print(double.remote(first), double.remote(second))
`

// The main job: cold once, then from the snapshot, warm in between; each explained.
func TestFunctionIsColdOnceThenRestoredThenWarm(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, mode.env...)
			file := s.write(t, "heavy.py", heavy)

			out := s.ok(t, "run", file, "--first", "20")
			require.Equal(t, "the module is imported\n20 1.5 False\nthe module is imported\ndoubling 20\ndoubling 1.5\n40 3.0\n", out)
			calls := s.calls(t, "heavy")
			require.Len(t, calls, 2)
			warm, cold := calls[0], calls[1]
			require.Equal(t, "cold", cold.Start)
			require.Equal(t, "succeeded", cold.State)
			require.Equal(t, "double", cold.Function)
			require.Equal(t, "none has been made yet", cold.step(t, "snapshot").Note)
			for _, name := range []string{"wait for instance", "mount image", "create sandbox", "start python", "import", "run"} {
				st := cold.step(t, name)
				require.LessOrEqual(t, st.Start+st.MS, cold.MS+1, "%s is a part of the call", name)
			}
			require.NotNil(t, cold.Origin)
			require.Greater(t, cold.Origin.OriginBytes+cold.Origin.CacheBytes, int64(1<<20))
			require.Less(t, cold.Origin.OriginBytes+cold.Origin.CacheBytes, cold.Origin.ImageBytes/3, "only what is touched is read")
			require.Equal(t, "warm", warm.Start)
			require.Equal(t, cold.Instance, warm.Instance)
			require.Len(t, warm.Steps, 1)

			s.ready(t, "heavy")
			s.cooled(t, "heavy")
			out = s.ok(t, "run", file, "--first", "-1", "--second", "2", "--loud")
			require.Equal(t, "the module is imported\n-1 2.0 True\ndoubling -1\ndoubling 2.0\n-2 4.0\n", out, "the module is not imported again")
			calls = s.calls(t, "heavy")
			require.Len(t, calls, 4)
			require.Equal(t, []string{"warm", "restored"}, []string{calls[0].Start, calls[1].Start})
			for _, name := range []string{"restore", "connect", "run"} {
				calls[1].step(t, name)
			}
			require.NotEqual(t, cold.Instance, calls[1].Instance)

			// For people, and by a prefix of the ID.
			text := s.ok(t, "calls", "show", calls[1].ID[:len(calls[1].ID)-2])
			require.Contains(t, text, fmt.Sprintf("call %s of heavy.double: succeeded", calls[1].ID))
			require.Contains(t, text, "restored")
			require.Contains(t, text, "STEP")

			require.Equal(t, "the module is imported\ndoubling 20\n", s.ok(t, "logs", cold.ID))
			require.Equal(t, "doubling -1\n", s.ok(t, "logs", calls[1].ID))
			require.Equal(t, 5, strings.Count(s.ok(t, "logs", "double"), "\n"))
		})
	}
}

func TestFunctionIsNamedOnTheCommandLine(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.write(t, "named.py", `
import brisk
app = brisk.App("named")

@app.function(block_network=True, enable_memory_snapshot=False)
def join(words: list[str], times: int = 1):
    return ",".join(words * times)

@app.function(block_network=True, enable_memory_snapshot=False)
def fail(text: str):
    raise ValueError(text)
`)
	require.Equal(t, "'a,b,a,b'\n", s.ok(t, "run", file+"::join", "--words", "a", "--words", "b", "--times", "2"))
	require.Equal(t, "\"a\"\n", s.ok(t, "--json", "run", file+"::join", "--words", "a"))

	stderr := s.fails(t, 1, "run", file+"::fail", "--text", "no luck")
	require.Contains(t, stderr, "ValueError: no luck")
	require.Contains(t, stderr, `File "/opt/brisk/code/named.py", line 11, in fail`)
	e := s.refused(t, 1, "run", file+"::fail", "--text", "no luck")
	require.Equal(t, "ValueError", e.Class)
	require.Equal(t, "no luck", e.Message)
	c := s.lastCall(t, "named")
	require.Equal(t, "raised", c.State)
	require.Equal(t, "ValueError: no luck", c.Error.Message)

	require.Equal(t, complaint{"not_found", "brisk: " + file + " has no function or local entry point named nope\nIt has: fail, join.", ""},
		s.refused(t, 3, "run", file+"::nope"))
	require.Contains(t, s.fails(t, 2, "run", file+"::join"), "the following arguments are required: --words")
	require.Contains(t, s.fails(t, 2, "run", file), "say which: ")
	require.Equal(t, "brisk: there is no file "+filepath.Join(s.files, "nope.py")+"\n", s.fails(t, 3, "run", filepath.Join(s.files, "nope.py")))
}
