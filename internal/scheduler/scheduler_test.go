package scheduler

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/node/channel"
)

func states(t *testing.T, s *Scheduler) map[string]int {
	t.Helper()
	l, err := s.Instances(context.Background(), "default")
	require.NoError(t, err)
	m := map[string]int{}
	for _, r := range l {
		m[r.State]++
	}
	return m
}

// evict ends the idle instances of a function, as the scaledown window would.
func evict(t *testing.T, s *Scheduler, n *fakeNode) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.mu.pools {
		p.mu.Lock()
		for _, l := range p.mu.idle {
			l.Instance.(*fakeInstance).die()
		}
		p.mu.Unlock()
	}
}

func TestFirstCallIsColdThenWarmThenRestored(t *testing.T) {
	s, n, d := setup(t, function.Spec{Snapshot: true})
	o, rec, text := call(s, d, "x")
	require.Equal(t, Returned, o.Kind)
	require.Equal(t, "re:x", string(o.Payload))
	require.Equal(t, "cold", rec.Start)
	require.Equal(t, CallSucceeded, rec.State)
	require.Equal(t, "loading\ncalled\n", text, "what the module prints belongs to the first call")

	_, rec, text = call(s, d, "y")
	require.Equal(t, "warm", rec.Start)
	require.Equal(t, "called\n", text)

	eventually(t, "a created sandbox after the snapshot", func() bool { return states(t, s)["created"] == 1 })
	evict(t, s, n)
	_, rec, _ = call(s, d, "z")
	require.Equal(t, "restored", rec.Start)
}

func TestStatsCountCallsAndStarts(t *testing.T) {
	s, n, d := setup(t, function.Spec{Snapshot: true})
	call(s, d, "x")
	call(s, d, "y")
	eventually(t, "a created sandbox after the snapshot", func() bool { return states(t, s)["created"] == 1 })
	st := s.Stats()
	require.Equal(t, map[string]int{"busy": 0, "idle": 1, "created": 1, "starting": 0}, st.Instances)
	require.Equal(t, map[CallState]int64{CallSucceeded: 2}, st.Calls)
	require.EqualValues(t, 1, st.Snapped)
	evict(t, s, n)
	n.set(func(n *fakeNode) { n.failCall = errors.New("it broke") })
	call(s, d, "z")
	n.set(func(n *fakeNode) {
		n.failStart, n.failResume = errors.New("it does not start"), errors.New("nor is it restored")
	})
	call(s, d, "z")
	st = s.Stats()
	require.Equal(t, map[CallState]int64{CallSucceeded: 2, CallFailed: 2}, st.Calls)
	counts := map[string]uint64{}
	for kind, d := range st.Waits {
		counts[kind] = d.Count
	}
	require.Equal(t, map[string]uint64{"cold": 1, "warm": 1, "restored": 1}, counts)
	require.EqualValues(t, 3, st.Runs.Count)
	require.EqualValues(t, 1, st.Starts["cold"].Count)
	require.EqualValues(t, 1, st.Starts["restored"].Count)
	require.EqualValues(t, 1, st.Unborn)
	require.Zero(t, st.Running+st.Waiting+st.Containers)
}

func TestNoSnapshotWhenNotWanted(t *testing.T) {
	s, n, d := setup(t, function.Spec{Snapshot: false})
	call(s, d, "x")
	evict(t, s, n)
	_, rec, _ := call(s, d, "x")
	require.Equal(t, "cold", rec.Start)
	require.Equal(t, 2, n.get(func(n *fakeNode) int { return n.prepared }))
}

func TestFailedRestoreFallsBackWithinTheCallAndIsCapped(t *testing.T) {
	s, n, d := setup(t, function.Spec{Snapshot: true})
	call(s, d, "x")
	n.set(func(n *fakeNode) { n.failResume = errors.New("bad pages") })
	for range 3 {
		eventually(t, "a snapshot", func() bool { return s.opt.Snapshots.Status(d).State == "ready" })
		evict(t, s, n)
		o, rec, _ := call(s, d, "x")
		require.Equal(t, Returned, o.Kind)
		require.Equal(t, "fallback", rec.Start)
		require.Contains(t, notes(rec), "restoring failed, starting clean: bad pages")
	}
	require.Equal(t, "failed", s.opt.Snapshots.Status(d).State)
	evict(t, s, n)
	_, rec, _ := call(s, d, "x")
	require.Equal(t, "cold", rec.Start, "after three failures the function runs without snapshots")
	require.Contains(t, notes(rec), "it has failed 3 times")
}

func notes(r CallRecord) (s string) {
	for _, st := range r.Steps {
		s += st.Note + "\n"
	}
	return s
}

func TestModuleThatDoesNotImport(t *testing.T) {
	s, n, d := setup(t, function.Spec{Snapshot: true})
	n.set(func(n *fakeNode) {
		n.failStart = &node.LoadError{Exception: &channel.Exception{Type: "ModuleNotFoundError", Message: "No module named 'nump'", Kind: "import"}, Output: "oops\n"}
	})
	o, rec, text := call(s, d, "x")
	require.Equal(t, Raised, o.Kind)
	require.Equal(t, "import", o.Exception.Kind)
	require.Equal(t, "oops\n", text)
	require.Equal(t, CallRaised, rec.State)
	eventually(t, "all gone", func() bool { return n.get(func(n *fakeNode) int { return n.alive }) == 0 })
}

func TestCallsQueueForMaxContainers(t *testing.T) {
	s, n, d := setup(t, function.Spec{MaxContainers: 1})
	gate := make(chan struct{})
	n.set(func(n *fakeNode) { n.block = gate })
	results := make(chan Outcome, 3)
	for range 3 {
		go func() { o, _, _ := call(s, d, "x"); results <- o }()
	}
	eventually(t, "three calls under way", func() bool { return s.Active() == 3 })
	close(gate)
	for range 3 {
		require.Equal(t, Returned, (<-results).Kind)
	}
	require.Equal(t, 1, n.get(func(n *fakeNode) int { return n.prepared }))
}

func TestCancelledCallDestroysItsInstance(t *testing.T) {
	s, n, d := setup(t, function.Spec{})
	n.set(func(n *fakeNode) { n.block = make(chan struct{}) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan Outcome)
	go func() {
		done <- s.Call(ctx, CallRequest{Workspace: "default", Function: d}, &recorder{})
	}()
	eventually(t, "the call runs", func() bool { return states(t, s)["busy"] == 1 })
	cancel()
	o := <-done
	require.Equal(t, fault.Cancelled, fault.ClassOf(o.Err))
	eventually(t, "its instance is gone", func() bool { return n.get(func(n *fakeNode) int { return n.alive }) == 0 })
}

func TestCallerWhoGoesAwayCancels(t *testing.T) {
	s, _, d := setup(t, function.Spec{})
	r := &recorder{fail: errors.New("broken pipe")}
	o := s.Call(context.Background(), CallRequest{Workspace: "default", Function: d}, r)
	rec, err := s.CallByID(context.Background(), "default", r.id)
	require.NoError(t, err)
	require.Contains(t, []CallState{CallFailed, CallSucceeded}, rec.State) // the fake may answer before it sees the cancellation
	require.NotEqual(t, Raised, o.Kind)
}

func TestBrokenInstanceIsNotUsedAgain(t *testing.T) {
	s, n, d := setup(t, function.Spec{})
	n.set(func(n *fakeNode) { n.failCall = fault.New(fault.Exhausted, "killed: memory") })
	o, rec, _ := call(s, d, "x")
	require.Equal(t, Failed, o.Kind)
	require.Equal(t, fault.Exhausted, rec.Error.Class)
	n.set(func(n *fakeNode) { n.failCall = nil })
	_, rec, _ = call(s, d, "x")
	require.Equal(t, "cold", rec.Start)
}

func TestScaledownWindow(t *testing.T) {
	s, n, d := setup(t, function.Spec{ScaledownWindow: 0.1})
	call(s, d, "x")
	eventually(t, "the idle instance goes", func() bool { return n.get(func(n *fakeNode) int { return n.alive }) == 0 })
}

func TestNewDefinitionRetiresTheOld(t *testing.T) {
	s, n, d := setup(t, function.Spec{})
	call(s, d, "x")
	d2 := register(t, s, "mean2", function.Spec{})
	require.NotEqual(t, d, d2)
	eventually(t, "the old instance goes", func() bool { return n.get(func(n *fakeNode) int { return n.alive }) == 0 })
	o, _, _ := call(s, d, "x")
	require.Equal(t, Returned, o.Kind, "a program that still runs the old definition is served")
	eventually(t, "and leaves nothing", func() bool { return n.get(func(n *fakeNode) int { return n.alive }) == 0 })
}

func TestUnknownFunctionAndOtherWorkspace(t *testing.T) {
	s, _, d := setup(t, function.Spec{})
	o := s.Call(context.Background(), CallRequest{Workspace: "other", Function: d}, &recorder{})
	require.Equal(t, fault.NotFound, fault.ClassOf(o.Err))
}

func TestBadSpecIsRefused(t *testing.T) {
	s, _, _ := setup(t, function.Spec{})
	for _, spec := range []function.Spec{{CPU: -1}, {Memory: 1}, {Timeout: 1e9}, {MaxContainers: 1, MinContainers: 2}, {AllowNetworks: []string{"10.0.0.0"}}} {
		_, err := s.Register(context.Background(), function.Function{
			Workspace: "default", App: "stats", Name: "f", Module: "m", Qualname: "f", Image: d1, Spec: spec,
		})
		require.Equal(t, fault.Invalid, fault.ClassOf(err), "%+v", spec)
	}
}

var d1 = func() (d [32]byte) { d[0] = 1; return }()

func TestRecordsAndLogsSurviveARestart(t *testing.T) {
	dir, n := t.TempDir(), &fakeNode{}
	s := open(t, dir, n)
	d := register(t, s, "mean", function.Spec{})
	_, rec, _ := call(s, d, "x")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// A server that is killed leaves a call without an end, and a torn line.
	s.journal.begin(CallRecord{ID: "c-killed", Workspace: "default", State: CallQueued})
	require.NoError(t, s.Close(ctx))
	f, err := os.OpenFile(filepath.Join(dir, "calls", "journal"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"id":"c-torn","wor`)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	s2 := open(t, dir, n)
	got, err := s2.CallByID(ctx, "default", rec.ID[:14])
	require.NoError(t, err)
	require.Equal(t, rec.MS, got.MS)
	require.Equal(t, rec.Steps, got.Steps)
	got, err = s2.CallByID(ctx, "default", "c-killed")
	require.NoError(t, err)
	require.Equal(t, fault.Interrupted, got.Error.Class)
	lines, err := s2.Logs(ctx, "default", LogFilter{Function: "mean"})
	require.NoError(t, err)
	require.Len(t, lines, 2)
	require.Equal(t, "loading\n", lines[0].Text)
	o := s2.Call(ctx, CallRequest{Workspace: "default", Function: d}, &recorder{})
	require.Equal(t, Returned, o.Kind, "a function stays registered")
}

func TestCloseFailsWhatIsUnderWay(t *testing.T) {
	dir, n := t.TempDir(), &fakeNode{}
	s := open(t, dir, n)
	d := register(t, s, "mean", function.Spec{MaxContainers: 1})
	n.set(func(n *fakeNode) { n.block = make(chan struct{}) })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	waiting := make(chan Outcome, 2)
	for range 2 {
		go func() { o, _, _ := call(s, d, "x"); waiting <- o }()
	}
	eventually(t, "one runs, one waits", func() bool { return s.Active() == 2 && states(t, s)["busy"] == 1 })
	require.NoError(t, s.Close(ctx))
	require.Equal(t, fault.Unavailable, fault.ClassOf((<-waiting).Err))
	n.set(func(n *fakeNode) { close(n.block) }) // the fake does not notice Destroy
	<-waiting
}
