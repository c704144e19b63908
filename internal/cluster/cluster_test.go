package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

func TestMembersFindEachOther(t *testing.T) {
	c := runControl(t)
	a, b := runNode(t, c, "a"), runNode(t, c, "b")
	requireSees(t, c, "a", "b")
	requireSees(t, a, "b", "c")
	requireSees(t, b, "a", "c")

	for _, from := range []*Cluster{a, b, c} {
		for _, to := range []*Cluster{a, b, c} {
			if from != to {
				text, err := whoami(t.Context(), from, to.Self())
				require.NoError(t, err)
				require.Equal(t, from.Self()+" at "+to.Self(), text)
			}
		}
	}
	require.Equal(t, a.Addr().String(), b.Members()[slices.IndexFunc(b.Members(), func(m Member) bool { return m.Name == "a" })].Address)

	s := c.Status()
	require.True(t, s.Control)
	require.Equal(t, "c", s.Self)
	require.Equal(t, "test", s.Members[1].Version)
	require.Len(t, s.Members, 3)
	require.True(t, s.Members[0].Control)
	require.Len(t, s.Cluster, 16)
	require.Equal(t, s.Cluster, b.Status().Cluster)
}

func TestWhatANodeKnowsSurvives(t *testing.T) {
	c := runControl(t)
	dir := join(t, c, "a")
	a := run(t, options(dir, ""))
	requireSees(t, c, "a")
	first := c.Members()[0]
	require.NoError(t, a.Close())
	requireSees(t, c)
	run(t, options(dir, ""))
	requireSees(t, c, "a")
	second := c.Members()[0]
	require.Greater(t, second.Epoch, first.Epoch, "another process")
	require.Equal(t, first.Key, second.Key)

	for _, name := range []string{"key.pem", "member.json"} {
		st, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	}
}

func TestTheDeadAreNotedByAll(t *testing.T) {
	c := runControl(t)
	a, b := runNode(t, c, "a"), runNode(t, c, "b")
	requireSees(t, a, "b", "c")
	require.NoError(t, b.Close())
	requireSees(t, a, "c")
	requireSees(t, c, "a")
	s := c.Status()
	require.Equal(t, "b", s.Members[2].Name)
	require.False(t, s.Members[2].Alive, "dead, and still a member")
}

func TestChangedIsToldOnceForEachChange(t *testing.T) {
	c := runControl(t)
	var mu sync.Mutex
	var told [][]string
	o := options(join(t, c, "a"), "")
	o.Changed = func(live []Member) {
		mu.Lock()
		defer mu.Unlock()
		var l []string
		for _, m := range live {
			l = append(l, m.Name)
		}
		told = append(told, l)
	}
	a := run(t, o)
	requireSees(t, a, "c")
	b := runNode(t, c, "b")
	requireSees(t, a, "b", "c")
	require.NoError(t, b.Close())
	requireSees(t, a, "c")
	require.NoError(t, a.Close())
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, [][]string{{"c"}, {"c", "b"}, {"c"}}, told)
}

func TestARemovedNodeIsRefusedByAll(t *testing.T) {
	c := runControl(t)
	a, b := runNode(t, c, "a"), runNode(t, c, "b")
	requireSees(t, a, "b", "c")
	requireSees(t, b, "a", "c")

	// Connections that exist help it as little as new ones.
	conn, err := b.Dial(t.Context(), "a")
	require.NoError(t, err)
	h, err := overHTTP(t.Context(), conn)
	require.NoError(t, err)
	defer h.Close()
	_, err = get(t.Context(), h, "/v1/whoami")
	require.NoError(t, err)
	toControl, err := b.Dial(t.Context(), "c")
	require.NoError(t, err)
	hc, err := overHTTP(t.Context(), toControl)
	require.NoError(t, err)
	defer hc.Close()
	_, err = get(t.Context(), hc, "/v1/whoami")
	require.NoError(t, err)

	withdrawn, err := c.Remove("b")
	require.NoError(t, err)
	require.Zero(t, withdrawn)
	_, err = get(t.Context(), hc, "/v1/whoami")
	requireClass(t, fault.Invalid, err)
	require.ErrorContains(t, err, "b is no member of the cluster")
	requireSees(t, a, "c")
	_, err = get(t.Context(), h, "/v1/whoami")
	require.ErrorContains(t, err, "b is no member of the cluster")
	requireSees(t, b)
	require.Contains(t, b.Status().Trouble, "b is no member of the cluster")
	_, err = c.Remove("b")
	requireClass(t, fault.NotFound, err)
	_, err = c.Remove("c")
	requireClass(t, fault.Invalid, err)
	_, err = a.Remove("c")
	requireClass(t, fault.Invalid, err)
	require.Equal(t, "Run the command on the control node, c.", fault.HintOf(err))

	// And may come back with a token, as another.
	_, err = Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "b", Token: token(t, c, TokenOptions{})})
	require.NoError(t, err)
}

func TestTheListOutlivesTheControlNodeForAWhile(t *testing.T) {
	dir := t.TempDir()
	o := options(dir, "c")
	c, err := Open(t.Context(), o)
	require.NoError(t, err)
	defer c.Close()
	c.Start()
	o.Listen = c.Addr().String() // it comes back there
	ao := options(join(t, c, "a"), "")
	ao.ListFor = 30 * beatTime
	a := run(t, ao)
	b := runNode(t, c, "b")
	requireSees(t, a, "b", "c")
	requireSees(t, b, "a", "c")
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return a.Status().Trouble != "" }, soon, beatTime/4)
	requireSees(t, b, "a", "c")
	_, err = whoami(t.Context(), b, "a")
	require.NoError(t, err, "the two do without it")
	requireSees(t, a) // a's list is no longer in force
	_, err = whoami(t.Context(), b, "a")
	requireClass(t, fault.Unavailable, err)

	back := run(t, o)
	requireSees(t, back, "a", "b")
	requireSees(t, a, "b", "c")
	require.Empty(t, a.Status().Trouble)
}

func TestNobodyDiesWhenTheControlNodeRestarts(t *testing.T) {
	o := options(t.TempDir(), "c")
	o.Beat, o.Misses = time.Hour, 3 // nobody beats a second time
	c, err := Open(t.Context(), o)
	require.NoError(t, err)
	c.Start()
	defer c.Close()
	runNode(t, c, "a")
	requireSees(t, c, "a")
	require.NoError(t, c.Close())
	requireSees(t, run(t, o), "a")
}

func TestClocksMayBeWrong(t *testing.T) {
	c := runControl(t)
	at := func(d time.Duration) func(*Cluster) {
		return func(n *Cluster) { n.clock.set(time.Now().Add(d)) }
	}
	const year = 365 * 24 * time.Hour
	a := run(t, options(join(t, c, "a"), ""), at(year))
	b := run(t, options(join(t, c, "b"), ""), at(-10*year))
	requireSees(t, a, "b", "c")
	requireSees(t, b, "a", "c")
	for _, pair := range [][2]*Cluster{{a, b}, {b, a}, {a, c}, {c, b}} {
		_, err := whoami(t.Context(), pair[0], pair[1].Self())
		require.NoError(t, err)
	}

	// The control node's own clock jumps: certificates that it does not take for
	// valid any more are renewed with the beats.
	before := a.cert.Load().Leaf.NotAfter
	c.clock.set(time.Now().Add(year))
	require.Eventually(t, func() bool {
		return a.cert.Load().Leaf.NotAfter.Sub(before) > year/2 && b.cert.Load().Leaf.NotAfter.Sub(before) > year/2
	}, soon, beatTime/4)
	for _, pair := range [][2]*Cluster{{a, b}, {b, a}, {a, c}, {c, b}} {
		_, err := whoami(t.Context(), pair[0], pair[1].Self())
		require.NoError(t, err)
	}
	kept, is, err := readMember(a.opts.Dir)
	require.NoError(t, err)
	require.True(t, is)
	require.Equal(t, a.cert.Load().Leaf.Raw, kept.Certificate)
	epoch := c.Members()[0].Epoch
	require.Eventually(t, func() bool { return a.Status().Age < beatTime.Milliseconds() }, soon, beatTime/4)
	again, _, err := readMember(a.opts.Dir)
	require.NoError(t, err)
	require.Equal(t, kept, again, "one new certificate, not one with each beat")
	require.Equal(t, epoch, c.Members()[0].Epoch)
}

func TestAMachineThatWasOffForAMonthIsAMember(t *testing.T) {
	c := runControl(t)
	dir := join(t, c, "a")
	c.clock.set(time.Now().Add(30 * 24 * time.Hour))
	a := run(t, options(dir, ""))
	requireSees(t, c, "a")
	require.Eventually(t, func() bool { return a.cert.Load().Leaf.NotAfter.After(c.clock.now()) }, soon, beatTime/4)
}

func TestExpiredCertificatesAreRefusedBetweenNodes(t *testing.T) {
	c := runControl(t)
	a, b := runNode(t, c, "a"), runNode(t, c, "b")
	requireSees(t, a, "b", "c")
	requireSees(t, b, "a", "c")
	old, err := c.control.authority.issue(b.self, b.key.Public(), time.Now().Add(-certificateLife-2*leeway))
	require.NoError(t, err)
	b.own(old)
	_, err = whoami(t.Context(), a, "b")
	requireClass(t, fault.Invalid, err)
	require.ErrorContains(t, err, "the other side's certificate of b is valid from")
	b.own(old)
	_, err = whoami(t.Context(), b, "a")
	require.Error(t, err)
}

func TestKeysReachAllNodes(t *testing.T) {
	ck, ak, bk := &memoryKeys{}, &memoryKeys{}, &memoryKeys{}
	require.NoError(t, ck.Make("shared"))
	o := options(t.TempDir(), "c")
	o.Keys, o.Origin = ck, "s3://bucket"
	c := run(t, o)

	dir := t.TempDir()
	_, err := Join(t.Context(), JoinOptions{Dir: dir, Name: "a", Token: token(t, c, TokenOptions{}),
		Keep: func(origin string, keys map[string]string) error {
			require.Equal(t, "s3://bucket", origin)
			return ak.Import(keys)
		}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"shared": "key of shared"}, ak.keys, "with the answer to joining")

	o = options(dir, "")
	o.Keys = ak
	a := run(t, o)
	o = options(join(t, c, "b"), "")
	o.Keys = bk
	run(t, o)
	requireSees(t, a, "b", "c")
	require.NoError(t, a.EnsureKeys(t.Context(), "team"))
	have := func(k *memoryKeys, w string) string {
		l, err := k.Export()
		require.NoError(t, err)
		return l[w]
	}
	require.Equal(t, "key of team", have(ck, "team"), "the control node made them")
	require.Equal(t, "key of team", have(ak, "team"), "and they are here")
	require.Eventually(t, func() bool { return have(bk, "team") == "key of team" }, soon, beatTime/4, "others have them with a beat")
	require.NoError(t, c.EnsureKeys(t.Context(), "own"))
	require.Eventually(t, func() bool { return have(bk, "own") == "key of own" }, soon, beatTime/4)
	requireClass(t, fault.Invalid, a.EnsureKeys(t.Context(), "../etc"))
}

func TestOnlyTheControlNodeIsTakenForIt(t *testing.T) {
	c := runControl(t)
	a, b := runNode(t, c, "a"), runNode(t, c, "b")
	requireSees(t, a, "b", "c")
	a.member.mu.Lock()
	a.member.file.Control = []string{b.Addr().String()}
	a.member.mu.Unlock()
	a.member.hangUp()
	require.Eventually(t, func() bool {
		return strings.Contains(a.Status().Trouble, "there is the node b and not the control node")
	}, soon, beatTime/4, a.Status().Trouble)
}

func TestMembersOfAnotherClusterAreStrangers(t *testing.T) {
	c, other := runControl(t), runControl(t)
	a, x := runNode(t, c, "a"), runNode(t, other, "a")
	requireSees(t, c, "a")
	requireSees(t, other, "a")
	for _, at := range []*Cluster{c, a} {
		conn, err := tls.Dial("tcp", at.Addr().String(), clientConfig(x.certificate, func([]*x509.Certificate) error { return nil }))
		if err == nil { // the server's refusal comes after the client's part is done
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		require.ErrorContains(t, err, "bad certificate")
		_, err = dialAny(t.Context(), []string{at.Addr().String()}, clientConfig(x.certificate, func(chain []*x509.Certificate) error {
			_, err := identify(x.authority, chain, time.Time{})
			return err
		}))
		requireClass(t, fault.Invalid, err)
		require.ErrorContains(t, err, "is not of this cluster")
	}
}

func TestStrangersMayOnlyJoin(t *testing.T) {
	c := runControl(t)
	a := runNode(t, c, "a")
	requireSees(t, c, "a")
	anybody := clientConfig(nil, func([]*x509.Certificate) error { return nil })
	l, err := openLine(t.Context(), []string{c.Addr().String()}, anybody)
	require.NoError(t, err)
	defer l.close()
	for _, path := range []string{pathBeat, pathKeys, pathLeave} {
		err := l.exchange(t.Context(), path, keysRequest{Version: protocol, Workspace: "shared"}, &nothing{})
		require.True(t, isRefusal(err), "%s: %v", path, err)
	}
	_, err = get(t.Context(), l.http, "/v1/whoami")
	require.True(t, isRefusal(err), "%v", err)
	// On a node there is nothing for them, not even a handshake.
	conn, err := tls.Dial("tcp", a.Addr().String(), anybody)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		conn.Close()
	}
	require.ErrorContains(t, err, "certificate required")
}

func TestOldProtocolsAreRefused(t *testing.T) {
	c := runControl(t)
	_, err := tls.Dial("tcp", c.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}})
	require.ErrorContains(t, err, "protocol version not supported")
	for _, protocols := range [][]string{{"http/1.1"}, nil} { // the handshake passes, but nobody answers
		conn, err := tls.Dial("tcp", c.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
		require.NoError(t, err)
		_, err = conn.Write([]byte("GET /v1/whoami HTTP/1.1\r\nHost: c\r\n\r\n"))
		require.NoError(t, err)
		b, _ := io.ReadAll(conn)
		require.Empty(t, b)
		conn.Close()
	}
}

func TestSlowStrangersKeepNobodyOut(t *testing.T) {
	c := run(t, options(t.TempDir(), "c"), func(c *Cluster) { c.handshake = 300 * time.Millisecond })
	for range 2 * maxStrangersFrom { // each says nothing
		conn, err := net.Dial("tcp", c.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
	}
	dir := t.TempDir()
	// Joining from there is beyond the limit, but members connect as soon as they
	// are known, and those that say nothing are cut off.
	require.Eventually(t, func() bool {
		_, err := Join(t.Context(), JoinOptions{Dir: dir, Name: "a", Token: token(t, c, TokenOptions{})})
		return err == nil
	}, soon, 50*time.Millisecond)
}

func TestCloseCancelsRequests(t *testing.T) {
	c := runControl(t)
	entered, left := make(chan struct{}), make(chan struct{})
	a := run(t, options(join(t, c, "a"), ""), func(n *Cluster) {
		n.Handle("GET /v1/hang", func(_ http.ResponseWriter, r *http.Request, _ string) {
			close(entered)
			<-r.Context().Done()
			close(left)
		})
	})
	requireSees(t, c, "a")
	requireSees(t, a, "c")
	conn, err := c.Dial(t.Context(), "a")
	require.NoError(t, err)
	defer conn.Close()
	h, err := overHTTP(t.Context(), conn)
	require.NoError(t, err)
	defer h.Close()
	done := make(chan error, 1)
	go func() {
		_, err := get(t.Context(), h, "/v1/hang")
		done <- err
	}()
	<-entered
	require.NoError(t, a.Close())
	<-left
	<-done
}

func TestOpenRefuses(t *testing.T) {
	o := options(t.TempDir(), "c")
	o.Listen = ""
	_, err := Open(t.Context(), o)
	requireClass(t, fault.Invalid, err)
	o = options(t.TempDir(), "no good name")
	_, err = Open(t.Context(), o)
	requireClass(t, fault.Invalid, err)
	c := runControl(t)
	o = options(t.TempDir(), "d")
	o.Listen = c.Addr().String()
	_, err = Open(t.Context(), o)
	requireClass(t, fault.Machine, err)
	require.Equal(t, "Name another address with --listen HOST:PORT.", fault.HintOf(err))
}

func TestDamagedStateIsNeverTakenForGood(t *testing.T) {
	c := runControl(t)
	for name, want := range map[string]fault.Class{
		"": fault.Corrupt, "{}": fault.Machine, `{"version": 2}`: fault.Machine, `{"version": 1, "name": 3}`: fault.Corrupt,
		`{"version": 1, "name": "a"}`: fault.Corrupt,
	} {
		dir := join(t, c, "n"+rand3())
		require.NoError(t, os.WriteFile(memberPath(dir), []byte(name), 0o600))
		_, err := Open(t.Context(), options(dir, ""))
		requireClass(t, want, err)
	}
	dir := t.TempDir()
	first, err := Open(t.Context(), options(dir, "c"))
	require.NoError(t, err)
	require.NoError(t, first.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".new-123"), []byte("torn"), 0o600))
	again, err := Open(t.Context(), options(dir, "c"))
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.NoFileExists(t, filepath.Join(dir, ".new-123"))
	require.Equal(t, first.self.cluster, again.self.cluster)
	whole, err := os.ReadFile(authorityFile(dir))
	require.NoError(t, err)
	for _, n := range []int{0, 1, 60, len(whole) / 2, len(whole) - 40} {
		require.NoError(t, os.WriteFile(authorityFile(dir), whole[:n], 0o600))
		_, err = Open(t.Context(), options(dir, "c"))
		requireClass(t, fault.Corrupt, err)
	}
}
