package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOrigin(t *testing.T) {
	storetest.TestOrigin(t, func(t *testing.T) store.Origin {
		o := New(storetest.NewMemOrigin(), Options{})
		t.Cleanup(func() { o.Close() })
		return o
	})
}

// bubble runs a test in time that passes at once, with an origin that has "key".
// Delays are half of the most that they may be.
func bubble(t *testing.T, test func(t *testing.T, o *Origin, f *storetest.Faults)) {
	synctest.Test(t, func(t *testing.T) {
		f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
		require.NoError(t, f.Put(t.Context(), "key", bytes.NewReader(content)))
		o := New(f, Options{Log: storetest.Log(t), Rand: func() float64 { return 0.5 }})
		defer o.Close()
		require.NoError(t, o.Delete(t.Context(), "none")) // it has answered
		f.Forget()
		test(t, o, f)
	})
}

var content = storetest.Data(1, 1<<20)

func unavailable() error { return fault.New(fault.Unavailable, "503") }

// sleep waits like a slow server.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failFirst makes the first n operations of a name fail.
func failFirst(f *storetest.Faults, name string, n int64, err error) {
	var left atomic.Int64
	left.Store(n)
	f.Before(func(_ context.Context, op storetest.Op) error {
		if op.Name == name && left.Add(-1) >= 0 {
			return err
		}
		return nil
	})
}

// operations are all that an origin does, by the name that Faults has for it.
var operations = map[string]func(ctx context.Context, o *Origin) error{
	"put":    func(ctx context.Context, o *Origin) error { return o.Put(ctx, "new", strings.NewReader("x")) },
	"swap":   func(ctx context.Context, o *Origin) error { _, err := o.Swap(ctx, "new", "", []byte("x")); return err },
	"read":   func(ctx context.Context, o *Origin) error { return o.ReadAt(ctx, "key", make([]byte, 10), 0) },
	"get":    func(ctx context.Context, o *Origin) error { _, _, err := o.Get(ctx, "key", 2<<20); return err },
	"size":   func(ctx context.Context, o *Origin) error { _, err := o.Size(ctx, "key"); return err },
	"delete": func(ctx context.Context, o *Origin) error { return o.Delete(ctx, "new") },
	"list": func(ctx context.Context, o *Origin) error {
		return o.List(ctx, "", func(store.Object) error { return nil })
	},
	"open": func(ctx context.Context, o *Origin) error {
		r, err := o.Open(ctx, "key", 0)
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			r.Close()
		}
		return err
	},
}

func TestRetries(t *testing.T) {
	for name, do := range operations {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
				failFirst(f, name, 3, unavailable())
				began := time.Now()
				err := do(t.Context(), o)
				if name == "swap" {
					require.True(t, fault.Is(err, fault.Unavailable), "%v: it may have been done", err)
					require.Equal(t, 1, f.Count(name))
					return
				}
				require.NoError(t, err)
				require.Equal(t, 4, f.Count(name))
				require.Equal(t, 350*time.Millisecond, time.Since(began)) // half of 100 + 200 + 400
				require.EqualValues(t, 3, o.Stats().Retries)
			})
		})
	}
}

func TestSwapIsRepeatedIfRefused(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		failFirst(f, "swap", 2, fault.New(fault.Unavailable, "busy (%w)", store.ErrRefused))
		_, err := o.Swap(t.Context(), "new", "", []byte("x"))
		require.NoError(t, err)
		require.Equal(t, 3, f.Count("swap"))
	})
}

// Answers are given on, without another attempt.
func TestAnswersAreNotRetried(t *testing.T) {
	for _, class := range []fault.Class{fault.NotFound, fault.Corrupt, fault.Invalid, fault.Machine, fault.Exists, fault.DiskFull, fault.Internal} {
		for name, do := range operations {
			t.Run(string(class)+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
					failFirst(f, name, 1, fault.New(class, "no"))
					require.Equal(t, class, fault.ClassOf(do(t.Context(), o)))
					require.Equal(t, 1, f.Count(name))
					require.True(t, o.Health().Up)
				})
			})
		}
	}
}

// An origin that never answers costs its deadline, once; then the breaker makes the
// same error come at once; and when it is back, it is found out within seconds.
func TestOriginHangs(t *testing.T) {
	for name, do := range operations {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
				f.Before(func(ctx context.Context, op storetest.Op) error { <-ctx.Done(); return ctx.Err() })
				began := time.Now()
				err := do(t.Context(), o)
				require.Equal(t, fault.Unavailable, fault.ClassOf(err), "%v", err)
				want := map[string]time.Duration{"put": 5 * 60 * time.Second, "list": 90 * time.Second, "open": 90 * time.Second, "swap": 10 * time.Second}[name]
				if want == 0 {
					want = 25 * time.Second
				}
				require.LessOrEqual(t, time.Since(began), want)
			})
		})
	}
}

func TestOriginDown(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		f.Before(func(context.Context, storetest.Op) error {
			return fault.New(fault.Unavailable, "connection refused").WithHint("Is it up?")
		})
		for range 3 { // each for 2.35 s of delays at most
			err := o.ReadAt(t.Context(), "key", make([]byte, 10), 0)
			require.Equal(t, fault.Unavailable, fault.ClassOf(err))
			require.ErrorContains(t, err, "connection refused")
			require.Equal(t, "Is it up?", fault.HintOf(err))
		}
		require.False(t, o.Health().Up)
		require.ErrorContains(t, o.Health().Err, "connection refused")

		// Now at once, whatever is wanted, but for a probe now and then.
		before, began := f.Count("read"), time.Now()
		for range 1000 {
			err := o.ReadAt(t.Context(), "key", make([]byte, 10), 0)
			require.ErrorIs(t, err, errDown)
			require.ErrorContains(t, err, "connection refused")
			require.Equal(t, "Is it up?", fault.HintOf(err))
		}
		require.Zero(t, time.Since(began))
		require.LessOrEqual(t, f.Count("read")-before, 1)
		require.GreaterOrEqual(t, o.Stats().Refused, int64(999))

		f.Before(nil)
		time.Sleep(lastProbe)
		require.NoError(t, o.ReadAt(t.Context(), "key", make([]byte, 10), 0))
		require.True(t, o.Health().Up)
		require.NoError(t, o.Health().Err)
	})
}

// An origin that is away from the start is given up within half a second.
func TestOriginWasNeverThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
		f.Before(func(context.Context, storetest.Op) error { return unavailable() })
		o := New(f, Options{Log: storetest.Log(t), Rand: func() float64 { return 0.5 }})
		defer o.Close()
		began := time.Now()
		_, err := o.Size(t.Context(), "key")
		require.ErrorIs(t, err, errDown)
		require.Less(t, time.Since(began), 800*time.Millisecond)
	})
}

// A probe whose caller goes away leaves the finding out to the next.
func TestProbeIsAbandoned(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		f.Before(func(context.Context, storetest.Op) error { return unavailable() })
		for range 3 {
			require.Error(t, o.ReadAt(t.Context(), "key", make([]byte, 10), 0))
		}
		require.False(t, o.Health().Up)
		time.Sleep(lastProbe)
		f.Before(func(ctx context.Context, _ storetest.Op) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, fault.Timeout, fault.ClassOf(o.Delete(ctx, "other")))
		f.Before(nil)
		require.NoError(t, o.ReadAt(t.Context(), "key", make([]byte, 10), 0))
	})
}

// A server that restarts fails a hundred reads at once, and none of them for good.
func TestRestart(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		back := time.Now().Add(500 * time.Millisecond)
		f.Before(func(context.Context, storetest.Op) error {
			if time.Now().Before(back) {
				return unavailable()
			}
			return nil
		})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				if err := o.ReadAt(t.Context(), "key", make([]byte, 10), int64(i)*5000); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// No more than Parallel requests at once.
func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
		var now, most atomic.Int64
		f.Before(func(ctx context.Context, op storetest.Op) error {
			n := now.Add(1)
			defer now.Add(-1)
			most.Store(max(most.Load(), n))
			return sleep(ctx, time.Second)
		})
		o := New(f, Options{Parallel: 3})
		defer o.Close()
		began := time.Now()
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() { _, _ = o.Size(t.Context(), "none") })
		}
		wg.Wait()
		require.EqualValues(t, 3, most.Load())
		require.Equal(t, 4*time.Second, time.Since(began))
	})
}

// Of reads of which one in 25 hangs for a second, the slow ones get a second request, at
// most one in twenty, and all are fast.
func TestHedging(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		var n atomic.Int64
		f.Before(func(ctx context.Context, op storetest.Op) error {
			if n.Add(1)%25 == 0 {
				return sleep(ctx, time.Second)
			}
			return sleep(ctx, 10*time.Millisecond)
		})
		slow := 0
		for i := range 1000 {
			began := time.Now()
			p := make([]byte, 100)
			require.NoError(t, o.ReadAt(t.Context(), "key", p, int64(i)*100))
			require.Equal(t, content[i*100:][:100], p)
			if time.Since(began) > 100*time.Millisecond {
				slow++
			}
		}
		st := o.Stats()
		require.LessOrEqual(t, st.Hedges, int64(50))
		require.GreaterOrEqual(t, st.HedgesWon, int64(30))
		require.LessOrEqual(t, slow, 3, "%+v", st)
		require.LessOrEqual(t, st.Requests, int64(1050))
	})
}

// When everything is slow, second requests stay one in twenty.
func TestHedgingHasABudget(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		var d atomic.Int64
		d.Store(int64(5 * time.Millisecond))
		f.Before(func(ctx context.Context, op storetest.Op) error { return sleep(ctx, time.Duration(d.Load())) })
		for range 100 {
			require.NoError(t, o.ReadAt(t.Context(), "key", make([]byte, 100), 0))
		}
		d.Store(int64(2 * time.Second))
		for range 100 {
			require.NoError(t, o.ReadAt(t.Context(), "key", make([]byte, 100), 0))
		}
		require.LessOrEqual(t, o.Stats().Hedges, int64(10))
		require.Positive(t, o.Stats().Hedges)
	})
}

// Writes are never made twice for speed.
func TestWritesAreNotHedged(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		for range 100 {
			require.NoError(t, o.ReadAt(t.Context(), "key", make([]byte, 100), 0))
		}
		f.Before(func(ctx context.Context, op storetest.Op) error { return sleep(ctx, 5*time.Second) })
		for _, name := range []string{"put", "delete", "swap"} {
			require.NoError(t, operations[name](t.Context(), o))
			require.Equal(t, 1, f.Count(name))
		}
	})
}

// Neighbours that are wanted while the first is being read are one request.
func TestMerging(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		f.Before(func(ctx context.Context, op storetest.Op) error { return sleep(ctx, 20*time.Millisecond) })
		for range hedgeFrom { // until the latency is known
			require.NoError(t, o.ReadAt(t.Context(), "key", make([]byte, 100), 0))
		}
		f.Forget()
		var wg sync.WaitGroup
		began := time.Now()
		for i := range 33 {
			wg.Go(func() {
				p := make([]byte, 1000)
				off := int64(i) * 1000
				if i == 32 {
					off = 900_000 // nobody's neighbour
				}
				if err := o.ReadAt(t.Context(), "key", p, off); err != nil || !bytes.Equal(p, content[off:][:1000]) {
					t.Errorf("%d: %v", i, err)
				}
			})
			if i == 0 {
				synctest.Wait() // it is on its way, alone
			}
		}
		wg.Wait()
		require.Equal(t, 3, f.Count("read"))
		require.EqualValues(t, 30, o.Stats().Merged)
		require.Equal(t, 22*time.Millisecond, time.Since(began))
		require.NoError(t, o.Close())
		require.Empty(t, o.gather.objects)
	})
}

// Of merged reads only those fail that are wrong by themselves.
func TestMergedErrors(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		f.Before(func(ctx context.Context, op storetest.Op) error { return sleep(ctx, 20*time.Millisecond) })
		for range hedgeFrom {
			require.NoError(t, o.ReadAt(t.Context(), "key", make([]byte, 100), 0))
		}
		var wg sync.WaitGroup
		var errs [3]error
		for i, off := range []int64{0, 1<<20 - 2000, 1<<20 - 1000} { // the last is too long
			wg.Go(func() { errs[i] = o.ReadAt(t.Context(), "key", make([]byte, 1001), off) })
			synctest.Wait()
		}
		wg.Wait()
		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		require.Equal(t, fault.Corrupt, fault.ClassOf(errs[2]), "%v", errs[2])
		require.ErrorIs(t, errs[2], io.ErrUnexpectedEOF)
	})
}

// A request goes on as long as one of those who share it waits; and ends with the last.
func TestLeaving(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		f.Before(func(ctx context.Context, op storetest.Op) error { return sleep(ctx, 20*time.Millisecond) })
		for range hedgeFrom {
			require.NoError(t, o.ReadAt(t.Context(), "key", make([]byte, 100), 0))
		}
		var ended atomic.Int64
		f.Before(func(ctx context.Context, op storetest.Op) error {
			err := sleep(ctx, 5*time.Second)
			if err != nil {
				ended.Add(1)
			}
			return err
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				waits := ctx
				if i == 2 {
					waits = t.Context()
				}
				err := o.ReadAt(waits, "key", make([]byte, 1000), int64(i)*1000)
				if i == 2 && err != nil || i < 2 && !fault.Is(err, fault.Cancelled) {
					t.Errorf("%d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Second) // 0 is alone, 1 and 2 share
		cancel()
		synctest.Wait()
		require.EqualValues(t, 2, ended.Load(), "the request of 0 and its second")
		wg.Wait()
	})
}

// A stream that breaks, or stands still, goes on where it was.
func TestStreamGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		var n atomic.Int64
		f.After(func(op storetest.Op, data *[]byte) error {
			if n.Add(1) > 3 {
				return nil
			}
			*data = (*data)[:100_000]
			return unavailable()
		})
		r, err := o.Open(t.Context(), "key", 10)
		require.NoError(t, err)
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.True(t, bytes.Equal(got, content[10:]))
		require.Equal(t, 4, f.Count("open"))
		require.EqualValues(t, 3, o.Stats().Retries)
	})
}

func TestStreamGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		f.After(func(op storetest.Op, data *[]byte) error { *data = nil; return unavailable() })
		r, err := o.Open(t.Context(), "key", 0)
		require.NoError(t, err)
		_, err = io.ReadAll(r)
		require.Equal(t, fault.Unavailable, fault.ClassOf(err))
		require.NoError(t, r.Close())
		require.Equal(t, 8, f.Count("open"))
	})
}

// A listing that breaks begins anew, and gives nothing twice.
func TestListGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMemOrigin()
		var want []string
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			require.NoError(t, m.Put(t.Context(), key, strings.NewReader(key)))
			want = append(want, key)
		}
		o := New(breaking{m, new(int)}, Options{})
		defer o.Close()
		var got []string
		require.NoError(t, o.List(t.Context(), "", func(object store.Object) error { got = append(got, object.Key); return nil }))
		slices.Sort(got)
		require.Equal(t, want, got)
		stop := errors.New("stop")
		require.ErrorIs(t, o.List(t.Context(), "", func(store.Object) error { return stop }), stop)
	})
}

// breaking is an origin whose listings break off after one object, twice.
type breaking struct {
	store.Origin
	n *int
}

func (b breaking) List(ctx context.Context, prefix string, fn func(store.Object) error) error {
	given := 0
	return b.Origin.List(ctx, prefix, func(o store.Object) error {
		if given++; given > 1 && *b.n < 2 {
			*b.n++
			return unavailable()
		}
		return fn(o)
	})
}

// What is put is read again for another attempt, if that can be.
func TestPutRewinds(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		failFirst(f, "put", 1, unavailable())
		r := bytes.NewReader([]byte("xxcontent"))
		_, err := r.Seek(2, io.SeekStart)
		require.NoError(t, err)
		require.NoError(t, o.Put(t.Context(), "new", r))
		b, _, err := o.Get(t.Context(), "new", 10)
		require.NoError(t, err)
		require.Equal(t, "content", string(b))

		failFirst(f, "put", 1, unavailable())
		err = o.Put(t.Context(), "other", io.MultiReader(strings.NewReader("x")))
		require.Equal(t, fault.Unavailable, fault.ClassOf(err))
	})
}

// Close ends reads that hang, and what comes after it fails.
func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T, o *Origin, f *storetest.Faults) {
		f.Before(func(ctx context.Context, op storetest.Op) error { <-ctx.Done(); return ctx.Err() })
		var wg sync.WaitGroup
		for name, do := range map[string]func() error{
			"read": func() error { return o.ReadAt(t.Context(), "key", make([]byte, 10), 0) },
			"get":  func() error { _, _, err := o.Get(t.Context(), "key", 2<<20); return err },
		} {
			wg.Go(func() {
				if err := do(); !fault.Is(err, fault.Cancelled) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		require.NoError(t, o.Close())
		wg.Wait()
		require.Zero(t, time.Since(began))
		require.Equal(t, fault.Cancelled, fault.ClassOf(o.ReadAt(t.Context(), "key", make([]byte, 10), 0)))
	})
}
