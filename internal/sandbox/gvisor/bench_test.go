package gvisor_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/sandbox/network"
	"brisk.dev/brisk/internal/sandbox/sandboxtest"
)

// BenchmarkSandbox measures the steps of a cold start with the smallest process
// there is, each up to the first answer over its socket where there is one. The
// variants have limits and a network, or neither.
func BenchmarkSandbox(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	root := sandboxtest.BuildRoot(b)
	dir := b.TempDir()
	rt, err := open(dir, "/brisk-test/"+sandboxtest.NewID())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = rt.Close() }()
	pool, err := network.Open(context.Background(), network.Options{Dir: b.TempDir(), Size: 8})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = pool.Close(context.Background()) }()
	for _, v := range []struct {
		name   string
		limits sandbox.Limits
		net    bool
	}{
		{name: "bare"},
		{name: "limits", limits: sandbox.Limits{CPU: 2, Memory: 1 << 30, Pids: 1000}},
		{name: "limits+network", limits: sandbox.Limits{CPU: 2, Memory: 1 << 30, Pids: 1000}, net: true},
	} {
		x := &bench{b: b, rt: rt, pool: pool, root: root, limits: v.limits, net: v.net}
		checkpoint := x.checkpoint()
		b.Run(v.name+"/create", func(b *testing.B) {
			x.loop(b, func(i *instance, begin func()) { begin(); i.create() })
		})
		b.Run(v.name+"/start", func(b *testing.B) {
			x.loop(b, func(i *instance, begin func()) { i.create(); begin(); i.start(); i.answer() })
		})
		b.Run(v.name+"/restore-created", func(b *testing.B) {
			x.loop(b, func(i *instance, begin func()) { i.create(); begin(); i.restore(checkpoint); i.answer() })
		})
		b.Run(v.name+"/restore", func(b *testing.B) {
			x.loop(b, func(i *instance, begin func()) { begin(); i.create(); i.restore(checkpoint); i.answer() })
		})
		b.Run(v.name+"/destroy", func(b *testing.B) {
			x.loop(b, func(i *instance, begin func()) { i.create(); i.start(); i.answer(); begin(); i.destroy() })
		})
	}
}

type bench struct {
	b      *testing.B
	rt     sandbox.Runtime
	pool   *network.Pool
	root   string
	limits sandbox.Limits
	net    bool
}

// instance is one sandbox of a benchmark.
type instance struct {
	x     *bench
	agent *sandboxtest.Agent
	out   *sandboxtest.Output
	spec  sandbox.Spec
	slot  *network.Slot
	sb    sandbox.Sandbox
	gone  bool
}

func (x *bench) instance() *instance {
	f := &sandboxtest.Fixture{Root: x.root}
	i := &instance{x: x, agent: sandboxtest.NewAgent(x.b), out: sandboxtest.NewOutput(x.b)}
	i.spec = i.agent.Serve(f.Spec())
	i.spec.Stdout, i.spec.Stderr, i.spec.Limits = i.out.File, i.out.File, x.limits
	if x.net {
		var err error
		if i.slot, err = x.pool.Get(context.Background(), network.Policy{}); err != nil {
			x.b.Fatal(err)
		}
		i.spec.Netns = i.slot.Path
	}
	return i
}

func (i *instance) do(err error) {
	if err != nil {
		i.x.b.Fatal(err)
	}
}

func (i *instance) create() {
	sb, err := i.x.rt.Create(context.Background(), i.spec)
	i.do(err)
	i.sb = sb
}

func (i *instance) start()             { i.do(i.sb.Start(context.Background())) }
func (i *instance) restore(dir string) { i.do(i.sb.Restore(context.Background(), dir)) }
func (i *instance) answer()            { i.agent.Must("count") }

func (i *instance) destroy() {
	if !i.gone {
		i.gone = true
		i.do(i.sb.Destroy(context.Background()))
	}
}

func (i *instance) close() {
	i.agent.Hangup()
	i.destroy()
	if i.slot != nil {
		i.slot.Release()
	}
}

func (x *bench) checkpoint() string {
	i := x.instance()
	defer i.close()
	i.create()
	i.start()
	i.answer()
	i.agent.Hangup()
	dir := filepath.Join(x.b.TempDir(), "checkpoint")
	i.do(i.sb.Checkpoint(context.Background(), dir))
	return dir
}

// loop times what f does after it has called begin.
func (x *bench) loop(b *testing.B, f func(*instance, func())) {
	b.StopTimer()
	b.ResetTimer()
	var least time.Duration
	for range b.N {
		i := x.instance()
		var start time.Time
		f(i, func() { start = time.Now(); b.StartTimer() })
		b.StopTimer()
		if d := time.Since(start); least == 0 || d < least {
			least = d
		}
		i.close()
	}
	b.ReportMetric(float64(least.Microseconds())/1000, "min-ms")
}
