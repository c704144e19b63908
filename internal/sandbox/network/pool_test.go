package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox/netns"
	"brisk.dev/brisk/internal/sandbox/network/networktest"
)

func TestMain(m *testing.M) { networktest.Main(m) }

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

func open(t *testing.T, o Options) *Pool {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	p, err := Open(ctx(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(ctx(t)); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, l := range leftovers(t, o.Dir, p.options.Name) {
			t.Errorf("left behind: %s", l)
		}
	})
	return p
}

func get(t *testing.T, p *Pool, allow ...string) *Slot {
	t.Helper()
	var policy Policy
	for _, a := range allow {
		policy.Allow = append(policy.Allow, netip.MustParsePrefix(a))
	}
	s, err := p.Get(ctx(t), policy)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// leftovers lists what a pool has in this namespace.
func leftovers(t *testing.T, dir, name string) (l []string) {
	t.Helper()
	links, err := dump(netlink.LinkList)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range links {
		if strings.HasPrefix(k.Attrs().Name, "brisk"+name+"-") {
			l = append(l, "link "+k.Attrs().Name)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		l = append(l, "namespace "+e.Name())
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range tables {
		if k.Name == "brisk_"+name {
			l = append(l, "table "+k.Name)
		}
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if strings.Contains(a.Label, "brisk"+name) {
			l = append(l, "address "+a.String())
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir+"/") {
		l = append(l, "mount below "+dir)
	}
	return l
}

func TestPolicy(t *testing.T) {
	networktest.New(t)
	networktest.Resolvers(t, "nameserver "+networktest.Resolver+"\nsearch example.test\n")
	host, err := net.Listen("tcp4", "0.0.0.0:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	go networktest.Echo(host)

	p := open(t, Options{Name: "t1"})
	a, b := get(t, p), get(t, p)
	open := get(t, p, "10.1.0.0/16", networktest.Host+"/32", b.Addr.String()+"/32")
	if err := netns.Do(b.Path, func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:80")
		if err == nil {
			go networktest.Echo(l)
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	refused := "refused"
	for _, c := range []struct {
		name string
		from *Slot
		to   string
		want string // what the other end sees, or an error
	}{
		{"public", a, networktest.Public, networktest.Host},
		{"private", a, networktest.Private, refused},
		{"other private", a, networktest.Private2, refused},
		{"metadata", a, networktest.Metadata, refused},
		{"resolver, other port", a, networktest.Resolver, refused},
		{"host's uplink", a, networktest.Host, refused},
		{"host's gateway address", a, a.gateway.String(), refused},
		{"another sandbox", a, b.Addr.String(), refused},
		{"another sandbox's gateway", a, b.gateway.String(), refused},
		{"allowed: public", open, networktest.Public, networktest.Host},
		{"allowed: private", open, networktest.Private, networktest.Host},
		{"allowed: not the other private", open, networktest.Private2, refused},
		{"allowed: host", open, networktest.Host, open.Addr.String()},
		{"allowed: other sandbox", open, b.Addr.String(), open.Addr.String()},
		{"not back", b, open.Addr.String(), refused},
	} {
		got, err := networktest.Fetch(c.from.Path, c.to+":80")
		if errors.Is(err, syscall.ECONNREFUSED) {
			got, err = refused, nil
		}
		if err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
	// A policy ends with its slot.
	open.Release()
	addr := lookup(t, a, networktest.Resolver)
	if addr != "203.0.113.7" {
		t.Errorf("name query: got %q", addr)
	}
	if want := "nameserver 10.255.255.53\nsearch example.test\n"; a.ResolvConf() != want {
		t.Errorf("resolv.conf: got %q, want %q", a.ResolvConf(), want)
	}
	// From the host and beyond, nothing comes in.
	if c, err := net.DialTimeout("tcp4", b.Addr.String()+":80", 3*time.Second); err != nil {
		t.Logf("the host itself may reach a sandbox, and got %v", err)
	} else {
		_ = c.Close()
	}
}

// lookup asks a server for a name from inside a slot.
func lookup(t *testing.T, s *Slot, server string) string {
	t.Helper()
	r := net.Resolver{PreferGo: true, Dial: func(c context.Context, _, _ string) (conn net.Conn, err error) {
		err = netns.Do(s.Path, func() error {
			conn, err = net.DialTimeout("udp4", server+":53", time.Second)
			return err
		})
		return conn, err
	}}
	got, err := r.LookupIP(ctx(t), "ip4", "name.test")
	if err != nil {
		t.Errorf("name query: %v", err)
		return ""
	}
	return got[0].String()
}

func TestSpoofedSourcesAndIPv6GoNowhere(t *testing.T) {
	networktest.New(t)
	networktest.Resolvers(t, "nameserver "+networktest.Resolver+"\n")
	p := open(t, Options{Name: "t2"})
	s := get(t, p)
	if err := netns.Do(s.Path, func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("100.127.255.1/32")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(eth, a)
	}); err != nil {
		t.Fatal(err)
	}
	err := netns.Do(s.Path, func() error {
		d := net.Dialer{Timeout: 300 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.IPv4(100, 127, 255, 1)}}
		c, err := d.Dial("tcp4", networktest.Public+":80")
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	if err == nil {
		t.Error("a connection from somebody else's address went through")
	}
	for name, do := range map[string]func(func() error) error{
		"the sandbox": func(f func() error) error { return netns.Do(s.Path, f) },
		"the host":    func(f func() error) error { return f() },
	} {
		link := map[string]string{"the sandbox": "eth0", "the host": s.link()}[name]
		if err := do(func() error {
			l, err := netlink.LinkByName(link)
			if err != nil {
				return err
			}
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
			if err == nil && len(addrs) > 0 {
				err = errors.New("it has an IPv6 address")
			}
			return err
		}); err != nil {
			t.Errorf("end of %s: %v", name, err)
		}
	}
}

func TestAnotherFirewallThatDropsByDefault(t *testing.T) {
	networktest.New(t)
	networktest.Resolvers(t, "nameserver "+networktest.Resolver+"\n")
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	docker := c.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	drop := nftables.ChainPolicyDrop
	forward := c.AddChain(&nftables.Chain{
		Table: docker, Name: "FORWARD", Type: nftables.ChainTypeFilter, Policy: &drop,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: docker, Chain: forward, Exprs: []expr.Any{&expr.Counter{}}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.DelTable(docker)
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
	})
	rules := func() int {
		r, err := c.GetRules(docker, forward)
		if err != nil {
			t.Fatal(err)
		}
		return len(r)
	}
	dir := t.TempDir()
	for range 2 {
		p, err := Open(ctx(t), Options{Dir: dir, Name: "t3"})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := networktest.Fetch(get(t, p).Path, networktest.Public+":80"); got != networktest.Host {
			t.Errorf("through the other firewall: got %q, %v", got, err)
		}
		if n := rules(); n != 3 {
			t.Errorf("the other chain has %d rules, want 3", n)
		}
		if err := p.Close(ctx(t)); err != nil {
			t.Fatal(err)
		}
		if n := rules(); n != 1 {
			t.Errorf("after Close the other chain has %d rules, want 1", n)
		}
	}
}

func TestRelayForALocalResolver(t *testing.T) {
	networktest.New(t)
	// The host asks a stub of its own, as with systemd-resolved.
	networktest.Resolvers(t, "nameserver 127.0.0.53\noptions edns0\n")
	stub := startStub(t)
	p := open(t, Options{Name: "t4"})
	s := get(t, p)
	if len(s.Resolvers) != 1 || !strings.Contains(s.ResolvConf(), "nameserver "+s.Resolvers[0].String()+"\noptions edns0\n") {
		t.Fatalf("resolvers: got %v, %q", s.Resolvers, s.ResolvConf())
	}
	if got := lookup(t, s, s.Resolvers[0].String()); got != "203.0.113.7" {
		t.Errorf("through the relay: got %q", got)
	}
	stub()
	if _, err := networktest.Fetch(s.Path, s.Resolvers[0].String()+":80"); err == nil {
		t.Error("the relay's address answers on another port")
	}
}

// startStub forwards 127.0.0.53:53 to the world's resolver.
func startStub(t *testing.T) (stop func()) {
	t.Helper()
	l, err := net.ListenPacket("udp4", "127.0.0.53:53")
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() { once.Do(func() { _ = l.Close() }) }
	t.Cleanup(stop)
	go func() {
		b := make([]byte, 4096)
		for {
			n, from, err := l.ReadFrom(b)
			if err != nil {
				return
			}
			c, err := net.Dial("udp4", networktest.Resolver+":53")
			if err != nil {
				continue
			}
			_ = c.SetDeadline(time.Now().Add(3 * time.Second))
			if _, err := c.Write(b[:n]); err == nil {
				if n, err := c.Read(b); err == nil {
					_, _ = l.WriteTo(b[:n], from)
				}
			}
			_ = c.Close()
		}
	}()
	return stop
}

func TestWhatAKilledServerLeftGoesWithTheNextOpen(t *testing.T) {
	networktest.New(t)
	networktest.Resolvers(t, "nameserver 127.0.0.53\n")
	dir := t.TempDir()
	dead, err := Open(ctx(t), Options{Dir: dir, Name: "t5", Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	get(t, dead, "10.0.0.0/8")
	// It stops without cleaning up: what a kill leaves, but for its sockets.
	dead.cancel()
	<-dead.done
	dead.relay.cancel()
	_ = dead.relay.udp.Close()
	_ = dead.relay.tcp.Close()
	dead.relay.wait.Wait()
	if l := leftovers(t, dir, "t5"); len(l) < 4 {
		t.Fatalf("the dead server left only %v", l)
	}
	open(t, Options{Dir: dir, Name: "t5"})
}

func TestRangesDoNotCollide(t *testing.T) {
	networktest.New(t)
	networktest.Resolvers(t, "nameserver "+networktest.Resolver+"\n")
	a, b := open(t, Options{}), open(t, Options{})
	get(t, a)
	get(t, b)
	c := open(t, Options{Name: "t6", Range: netip.MustParsePrefix("172.31.7.0/24")})
	if got := get(t, c).Addr.String(); !strings.HasPrefix(got, "172.31.7.") {
		t.Errorf("address in a range of one's own: %s", got)
	}
	if a.options.Name == b.options.Name {
		t.Error("two pools have one name")
	}
	if _, err := Open(ctx(t), Options{Dir: t.TempDir(), Name: "t7", Range: netip.MustParsePrefix("172.31.7.0/30")}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a range that is too small: got %v", err)
	}
}

func TestExhaustionAndReuse(t *testing.T) {
	networktest.New(t)
	networktest.Resolvers(t, "nameserver "+networktest.Resolver+"\n")
	p := open(t, Options{Name: "t8", Size: 1, Range: netip.MustParsePrefix("172.31.8.0/24")})
	var all []*Slot
	for {
		s, err := p.Get(ctx(t), Policy{})
		if err != nil {
			if !fault.Is(err, fault.Exhausted) {
				t.Fatalf("when none is left: got %v (%s), want exhausted", err, fault.ClassOf(err))
			}
			break
		}
		all = append(all, s)
	}
	if len(all) != 63 {
		t.Errorf("a /24 gave %d slots, want 63", len(all))
	}
	seen := map[netip.Addr]bool{}
	for _, s := range all {
		if seen[s.Addr] {
			t.Errorf("%s came twice", s.Addr)
		}
		seen[s.Addr] = true
	}
	all[10].Release()
	all[10].Release()
	var s *Slot
	for s == nil { // until the released one has been removed
		var err error
		if s, err = p.Get(ctx(t), Policy{}); err != nil && !fault.Is(err, fault.Exhausted) {
			t.Fatal(err)
		}
	}
	if s.Addr != all[10].Addr {
		t.Errorf("got %s, want the released %s", s.Addr, all[10].Addr)
	}
	if got, err := networktest.Fetch(s.Path, networktest.Public+":80"); err != nil || got != networktest.Host {
		t.Errorf("reused address: got %q, %v", got, err)
	}
}

func TestCloseIsFinal(t *testing.T) {
	networktest.New(t)
	networktest.Resolvers(t, "")
	dir := t.TempDir()
	p, err := Open(ctx(t), Options{Dir: dir, Name: "t9"})
	if err != nil {
		t.Fatal(err)
	}
	s := get(t, p)
	if s.ResolvConf() != "" {
		t.Errorf("resolv.conf of a host without: %q", s.ResolvConf())
	}
	if err := p.Close(ctx(t)); err != nil {
		t.Fatal(err)
	}
	s.Release()
	if _, err := p.Get(ctx(t), Policy{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("get after close: got %v, want unavailable", err)
	}
	if l := leftovers(t, dir, "t9"); len(l) != 0 {
		t.Errorf("left behind: %v", l)
	}
	if _, err := Open(ctx(t), Options{Dir: "relative"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("relative directory: got %v", err)
	}
	bad := Policy{Allow: []netip.Prefix{netip.MustParsePrefix("fd00::/8")}}
	q := open(t, Options{Name: "ta"})
	if _, err := q.Get(ctx(t), bad); !fault.Is(err, fault.Invalid) {
		t.Errorf("IPv6 policy: got %v", err)
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 { // more than are in stock
		s, err := q.Get(done, Policy{})
		if err != nil {
			if !fault.Is(err, fault.Cancelled) {
				t.Errorf("cancelled get: got %v", err)
			}
			break
		}
		s.Release()
	}
}
