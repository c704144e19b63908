package sandboxtest

import (
	"strconv"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
)

func (s *suite) memory(f *Fixture) {
	t := f.T
	spec := f.Spec("alloc", "400")
	spec.Limits.Memory = 200 << 20
	if e, _, _ := f.Run(spec); e != (sandbox.Exit{Code: 137, OOMKilled: true}) {
		t.Errorf("400 MiB in 200 MiB: got %+v, want an OOM kill", e)
	}
	spec = f.Spec("alloc", "100")
	spec.Limits.Memory = 300 << 20
	sb := f.Start(spec)
	if e := f.Wait(sb); e != (sandbox.Exit{}) {
		t.Errorf("100 MiB in 300 MiB: got %+v", e)
	}
	if u, err := sb.Usage(); err != nil || u.MemoryMax < 100<<20 || u.MemoryMax > 300<<20 {
		t.Errorf("most memory used: got %+v, %v; want 100 to 300 MiB", u, err)
	}
	// A limit that leaves nothing for the code is named as the cause.
	spec = f.Spec("exit", "0")
	spec.Limits.Memory = 4 << 20
	if sb, err := f.RT.Create(Context(t), spec); err == nil {
		if err := sb.Start(Context(t)); err == nil {
			if e := f.Wait(sb); !e.OOMKilled {
				t.Errorf("with 4 MiB: got %+v, want an OOM kill", e)
			}
		} else if !fault.Is(err, fault.Exhausted) {
			t.Errorf("start with 4 MiB: got %v (%s), want exhausted", err, fault.ClassOf(err))
		}
		f.Destroy(sb)
	} else if !fault.Is(err, fault.Exhausted) {
		t.Errorf("create with 4 MiB: got %v (%s), want exhausted", err, fault.ClassOf(err))
	}
	// Files in the root's overlay are memory too.
	spec = f.Spec("fill", "/big", "400")
	spec.Limits.Memory = 200 << 20
	if e, _, _ := f.Run(spec); !e.OOMKilled {
		t.Errorf("a file of 400 MiB in 200 MiB: got %+v, want an OOM kill", e)
	}
}

func (s *suite) cpu(f *Fixture) {
	t := f.T
	spec := f.Spec("spin", "1000")
	spec.Limits.CPU = 0.2
	start := time.Now()
	sb := f.Start(spec)
	e := f.Wait(sb)
	elapsed := time.Since(start)
	u, err := sb.Usage()
	// A period's quota may be used at once, on each CPU.
	if due := elapsed/5 + 100*time.Millisecond; e.Code != 0 || err != nil || u.CPU > due {
		t.Errorf("a fifth of a CPU for %v: got %+v, used %v, %v; want at most %v", elapsed, e, u.CPU, err, due)
	}
}

func (s *suite) pids(f *Fixture) {
	t := f.T
	spec := f.Spec("fork", "200")
	spec.Limits.Pids = 60
	e, out, errs := f.Run(spec)
	n, err := strconv.Atoi(out)
	if e.Code != 1 || err != nil || n >= 60 || n == 0 || !strings.Contains(errs, "resource temporarily unavailable") {
		t.Errorf("200 processes of at most 60: got %+v, %q, %q", e, out, errs)
	}
	// A fork bomb reaches the limit and does no harm.
	out2 := NewOutput(t)
	spec = f.Spec("bomb")
	spec.Limits.Pids = 50
	spec.Stdout = out2.File
	sb := f.Start(spec)
	out2.await(t, "refused")
	f.Destroy(sb)
	if e, err := sb.Wait(Context(t)); err != nil || e.Code != 137 {
		t.Errorf("fork bomb: got %+v, %v", e, err)
	}
	// Root inside can give each process to another user, each of whom may start as
	// many. The machine is protected all the same: the sandbox ends when it meets the
	// wall behind, or, where hundreds of spinning processes share few CPUs, has not
	// got that far by the deadline; it is destroyed like any other.
	spec = f.Spec("scatter")
	spec.Limits.Pids = 50
	sb = f.Start(spec)
	if _, err := sb.Wait(Context(t)); !fault.Is(err, fault.Exhausted) && !fault.Is(err, fault.Timeout) {
		t.Errorf("end of a sandbox that scatters processes: got %v (%s), want exhausted", err, fault.ClassOf(err))
	}
	f.Destroy(sb)
	if _, err := sb.Wait(Context(t)); fault.Is(err, fault.Timeout) {
		t.Error("a sandbox that scatters processes outlives Destroy")
	}
}
