package gvisor_test

import (
	"path/filepath"
	"strings"
	"testing"

	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/sandbox/network"
	"brisk.dev/brisk/internal/sandbox/network/networktest"
	"brisk.dev/brisk/internal/sandbox/sandboxtest"
)

// TestNetwork runs gVisor's own network stack on a slot, checkpoints it, and
// restores it into other slots with other addresses: the first thing that the
// restored process does, a name query, must succeed.
func TestNetwork(t *testing.T) {
	networktest.New(t)
	networktest.Resolvers(t, "nameserver "+networktest.Resolver+"\n")
	root := sandboxtest.BuildRoot(t)
	group := "/brisk-test/" + sandboxtest.NewID()
	rt, err := open(t.TempDir(), group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rt.Close() })
	pool, err := network.Open(sandboxtest.Context(t), network.Options{Dir: t.TempDir(), Name: "gv"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(sandboxtest.Context(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	f := &sandboxtest.Fixture{T: t, RT: rt, Root: root}
	connected := func() (*sandboxtest.Agent, *network.Slot, sandbox.Sandbox) {
		slot, err := pool.Get(sandboxtest.Context(t), network.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(slot.Release)
		a := sandboxtest.NewAgent(t)
		spec := a.Serve(f.Spec())
		spec.Netns = slot.Path
		return a, slot, f.Create(spec)
	}
	check := func(a *sandboxtest.Agent, slot *network.Slot) {
		t.Helper()
		if got := a.Must("ask", networktest.Resolver+":53", "name.test"); got != "203.0.113.7" {
			t.Errorf("name query: got %q", got)
		}
		if got := a.Must("fetch", networktest.Public+":80"); got != networktest.Host {
			t.Errorf("public: got %q", got)
		}
		if _, err := a.Do("fetch", networktest.Metadata+":80"); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("metadata: got %v, want refused", err)
		}
		if got := a.Must("addr"); !strings.Contains(got, slot.Addr.String()+"/30") {
			t.Errorf("addresses: got %q, want %s", got, slot.Addr)
		}
	}
	a, slot, sb := connected()
	if err := sb.Start(sandboxtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	check(a, slot)
	// A connection that is open during the checkpoint does not stop it, and is
	// found closed afterwards, not hanging.
	a.Must("hold", networktest.Public+":81")
	if got := a.Must("poke"); got != "open" {
		t.Errorf("held connection: got %s", got)
	}
	a.Hangup()
	dir := filepath.Join(t.TempDir(), "checkpoint")
	if err := sb.Checkpoint(sandboxtest.Context(t), dir); err != nil {
		t.Fatal(err)
	}
	f.Destroy(sb)
	for range 5 {
		a, slot, sb := connected()
		if err := sb.Restore(sandboxtest.Context(t), dir); err != nil {
			t.Fatal(err)
		}
		check(a, slot)
		if got := a.Must("poke"); got != "closed" {
			t.Errorf("held connection after the restore: got %s, want closed", got)
		}
		f.Destroy(sb)
	}
}
