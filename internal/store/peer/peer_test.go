package peer

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

func TestAChunkComesFromWhoeverHasIt(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	for i := range 5 {
		d := name(i)
		r.nodes["b"].has(d)
		r.requireKnows(d, "b")
		require.NoError(t, r.nodes["a"].fetch(d))
	}
	one := r.nodes["a"].of("b")
	require.EqualValues(t, 5, one.Reads)
	require.EqualValues(t, 5*len(content(name(0))), one.Bytes)
	require.Positive(t, one.P50)
	require.Equal(t, Ready, one.State)
	served := r.nodes["b"].of("a")
	require.EqualValues(t, 5, served.ServedChunks)
	require.EqualValues(t, one.Bytes, served.ServedBytes)
	require.EqualValues(t, 5, r.nodes["a"].peers.Stats().Hits)
}

// TestOneHolderAmongManyIsFound has every node find what any one other has.
func TestOneHolderAmongManyIsFound(t *testing.T) {
	r := newRig(t, "a", "b", "c", "d", "e", "f", "g", "h")
	i := 0
	for _, holder := range r.nodes {
		i++
		d := name(i)
		holder.has(d)
		r.requireKnows(d, holder.name)
		for _, reader := range r.nodes {
			if reader != holder {
				require.NoError(t, reader.fetch(d), "%s from %s", reader.name, holder.name)
			}
		}
		require.Positive(t, holder.asked.Load())
	}
}

func TestNobodyHasIt(t *testing.T) {
	r := newRig(t, "a", "b", "c", "d")
	requireAbsent(t, r.nodes["a"].fetch(name(1)))
	require.EqualValues(t, 1, r.nodes["a"].peers.Stats().Absent)
	for _, other := range []string{"b", "c", "d"} {
		require.LessOrEqual(t, r.nodes[other].asked.Load(), int64(1))
	}
	alone := newRig(t, "x")
	requireAbsent(t, alone.nodes["x"].fetch(name(1)))
}

func TestAnotherWorkspaceIsAnother(t *testing.T) {
	r := newRig(t, "a", "b")
	d := name(1)
	r.nodes["b"].has(d)
	requireAbsent(t, r.nodes["a"].peers.Fetch(t.Context(), "other", d, func([]byte) error { return nil }))
}

func TestADeadPeerCostsOnce(t *testing.T) {
	r := newRig(t, "a", "b")
	a, b := r.nodes["a"], r.nodes["b"]
	a.peers.firstPause = time.Hour
	d := name(1)
	b.has(d)
	require.NoError(t, a.fetch(d))
	require.NoError(t, b.server.Close())
	requireAbsent(t, a.fetch(d))
	require.Eventually(t, func() bool { return a.of("b").State == Resting }, soon, time.Millisecond)
	require.EqualValues(t, 1, a.of("b").Failures)
	before, dials := a.peers.Stats().Unasked, b.dials.Load()
	for range 10 {
		requireAbsent(t, a.fetch(d))
	}
	require.Equal(t, before+10, a.peers.Stats().Unasked, "nobody asks it")
	require.Equal(t, dials, b.dials.Load(), "no reader connects")
}

func TestABlackHoleCostsItsDeadlineOnce(t *testing.T) {
	r := newRigWith(t, Options{Deadline: 200 * time.Millisecond, Parallel: 100}, "a", "b")
	a, b := r.nodes["a"], r.nodes["b"]
	a.peers.firstPause = time.Hour
	d := name(1)
	b.has(d)
	require.NoError(t, a.fetch(d))
	b.hole.Store(true)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { requireAbsent(t, a.fetch(d)) })
	}
	wg.Wait()
	require.EqualValues(t, 1, a.of("b").Failures, "all of them together")
	require.Equal(t, Resting, a.of("b").State)
	require.Contains(t, a.of("b").Reason, "no answer within")
	requireAbsent(t, a.fetch(d))
	require.EqualValues(t, 1, a.of("b").Failures)
}

func TestAPeerThatComesBackIsAskedAgain(t *testing.T) {
	r := newRigWith(t, Options{Deadline: 200 * time.Millisecond}, "a", "b")
	a, b := r.nodes["a"], r.nodes["b"]
	d := name(1)
	b.has(d)
	b.hole.Store(true)
	requireAbsent(t, a.fetch(d))
	require.Eventually(t, func() bool { return a.of("b").Failures >= 2 }, soon, time.Millisecond, "tried in the background")
	b.hole.Store(false)
	require.Eventually(t, func() bool { return a.of("b").State == Ready }, soon, time.Millisecond)
	require.NoError(t, a.fetch(d))
}

func TestTheOtherOwnerAnswersForADeadOne(t *testing.T) {
	r := newRigWith(t, Options{Deadline: 200 * time.Millisecond}, "a", "b", "c", "d")
	a := r.nodes["a"]
	d := a.nameOwnedBy("b", "c")
	r.nodes["d"].has(d)
	r.requireKnows(d, "d")
	r.nodes["b"].hole.Store(true)
	require.NoError(t, a.fetch(d))
	require.Eventually(t, func() bool { return a.of("b").Failures > 0 }, soon, time.Millisecond, "found out though another answered")
}

func TestALiarIsConvicted(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	a, b, c := r.nodes["a"], r.nodes["b"], r.nodes["c"]
	d := a.nameOwnedBy("b", "c")
	b.answering(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("lies")) })
	c.has(d)
	require.NoError(t, a.fetch(d), "the other one is asked")
	require.EqualValues(t, 1, a.of("b").Lies)
	require.Equal(t, Convicted, a.of("b").State)
	require.Greater(t, a.of("b").Until, (9 * time.Minute).Milliseconds())
	asked := b.asked.Load()
	for range 10 {
		require.NoError(t, a.fetch(d))
	}
	require.Equal(t, asked, b.asked.Load(), "not asked again")

	// Starting again does not help it.
	r.epoch++
	a.peers.SetMembers(r.others(a))
	require.Eventually(t, func() bool { return a.of("c").State == Ready }, soon, time.Millisecond)
	require.NoError(t, a.fetch(d))
	require.Equal(t, asked, b.asked.Load())
	require.Equal(t, Convicted, a.of("b").State)
	require.EqualValues(t, 11+1, a.peers.Stats().Hits)
}

func TestOnlyLiarsMeansNobody(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	for _, other := range []string{"b", "c"} {
		r.nodes[other].answering(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("lies")) })
	}
	requireAbsent(t, r.nodes["a"].fetch(r.nodes["a"].nameOwnedBy("b", "c")))
	require.EqualValues(t, 1, r.nodes["a"].of("b").Lies)
	require.EqualValues(t, 1, r.nodes["a"].of("c").Lies)
}

func TestBrokenAnswersAreFailures(t *testing.T) {
	r := newRig(t, "a", "b")
	a, b := r.nodes["a"], r.nodes["b"]
	for what, h := range map[string]http.HandlerFunc{
		"500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://example.com")
			w.WriteHeader(http.StatusFound)
		},
		"empty": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") },
		"no length": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(content(name(1)))
			w.(http.Flusher).Flush()
		},
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(store.MaxAnswer+1))
			_, _ = w.Write(make([]byte, store.MaxAnswer+1))
		},
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(what, func(t *testing.T) {
			require.Eventually(t, func() bool { return a.of("b").State == Ready }, soon, time.Millisecond)
			before := a.of("b")
			b.answering(h)
			requireAbsent(t, a.fetch(name(1)))
			require.Greater(t, a.of("b").Failures, before.Failures)
			require.Equal(t, before.Reads, a.of("b").Reads)
			b.answering(nil)
		})
	}
	require.Zero(t, a.of("b").Lies)
}

func TestWhoIsBusyIsNoFailure(t *testing.T) {
	r := newRig(t, "a", "b")
	a, b := r.nodes["a"], r.nodes["b"]
	for i, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden} {
		b.answering(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		require.Eventually(t, func() bool { return a.peers.table.Load().machines[0].ready() != nil }, soon, time.Millisecond)
		requireAbsent(t, a.fetch(name(1)))
		require.EqualValues(t, i+1, a.of("b").Busy)
	}
	require.Zero(t, a.of("b").Failures)
	require.Equal(t, Ready, a.of("b").State)
}

func TestTheSecondIsAskedWhenTheFirstIsSlow(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	a := r.nodes["a"]
	d := a.nameOwnedBy("b", "c")
	r.nodes["c"].has(d)
	release := make(chan struct{})
	r.nodes["b"].answering(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		w.WriteHeader(http.StatusNotFound)
	})
	require.NoError(t, a.fetch(d))
	require.EqualValues(t, 1, a.peers.Stats().Hedges)
	close(release)
}

// What the slower of two gave is counted as wasted, also if it comes when the reader has gone.
func TestAnswersThatCameTwiceAreCounted(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	a := r.nodes["a"]
	d := a.nameOwnedBy("b", "c")
	r.nodes["c"].has(d)
	release := make(chan struct{})
	r.nodes["b"].answering(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		_, _ = w.Write(content(d))
	})
	require.NoError(t, a.fetch(d))
	require.Zero(t, a.peers.Stats().Unwanted)
	close(release)
	require.Eventually(t, func() bool { return a.peers.Stats().Unwanted == 1 }, soon, time.Millisecond)
	require.EqualValues(t, len(content(d)), a.peers.Stats().Wasted)
	require.EqualValues(t, len(content(d)), a.of("b").Bytes+a.of("c").Bytes, "one of them was taken")
}

func TestAStampedeIsBounded(t *testing.T) {
	const answers = 4
	r := newRigWith(t, Options{Answers: answers, Parallel: 20}, "a", "b")
	a, b := r.nodes["a"], r.nodes["b"]
	var now, most, refused atomic.Int64
	release := make(chan struct{})
	serve := b.peers.opts.Serve
	b.peers.opts.Serve = func(ctx context.Context, w string, d store.Digest) ([]byte, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		return serve(ctx, w, d)
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if fault.Is(a.fetch(name(i)), fault.NotFound) && refused.Add(1) == 100-answers {
				close(release) // all others were sent on to the origin while those waited
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, answers, most.Load())
	require.Zero(t, a.of("b").Failures)
	require.Positive(t, a.of("b").Busy)
	require.Empty(t, b.peers.asking)
}

func TestNewOwnersAreTold(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	for i := range 200 {
		r.nodes["c"].has(name(i))
	}
	r.add(Options{Deadline: 5 * time.Second}, "d")
	r.add(Options{Deadline: 5 * time.Second}, "e")
	r.meet()
	for i := range 200 {
		r.requireKnows(name(i), "c")
	}
	// One goes: those that follow it in rank are told.
	_ = r.nodes["b"].server.Close()
	delete(r.nodes, "b")
	r.meet()
	for i := range 200 {
		r.requireKnows(name(i), "c")
	}
	// One starts again, and has forgotten everything.
	again := r.nodes["d"]
	again.peers.directory = newDirectory(directorySize)
	r.epoch++
	r.meet()
	for i := range 200 {
		r.requireKnows(name(i), "c")
	}
}

func TestMembersThatGoAreLeft(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	a := r.nodes["a"]
	d := name(1)
	r.nodes["b"].has(d)
	r.requireKnows(d, "b")
	require.NoError(t, a.fetch(d))
	a.peers.SetMembers(nil)
	requireAbsent(t, a.fetch(d))
	require.Equal(t, Gone, a.of("b").State)
	require.EqualValues(t, 1, a.of("b").Reads, "what was counted stays")
}

func TestCloseEndsWhatHangs(t *testing.T) {
	r := newRig(t, "a", "b")
	entered := make(chan struct{}, 1)
	release := make(chan struct{})
	defer close(release)
	r.nodes["b"].answering(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-release
	})
	done := make(chan error, 1)
	go func() { done <- r.nodes["a"].fetch(name(1)) }()
	<-entered
	require.NoError(t, r.nodes["a"].peers.Close())
	require.Error(t, <-done)
	require.Equal(t, fault.Cancelled, fault.ClassOf(r.nodes["a"].peers.Fetch(t.Context(), "w", name(1), nil)))
	r.nodes["a"].peers.Announce("w", name(1))
	r.nodes["a"].peers.SetMembers(nil)
}

func TestAReaderThatGoesWaitsForNobody(t *testing.T) {
	r := newRig(t, "a", "b")
	entered := make(chan struct{}, 1)
	release := make(chan struct{})
	r.nodes["b"].answering(func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-release
		w.WriteHeader(http.StatusNotFound)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.nodes["a"].peers.Fetch(ctx, "w", name(1), nil) }()
	<-entered
	cancel()
	require.Equal(t, fault.Cancelled, fault.ClassOf(<-done))
	close(release)
	require.Zero(t, r.nodes["a"].of("b").Failures)
}

func TestAnnouncementsOfWhoCannotBeReachedAreNotMade(t *testing.T) {
	p := New(Options{Self: "a"})
	defer p.Close()
	p.Announce("w", name(1))
	require.Empty(t, p.announced.names)
}
