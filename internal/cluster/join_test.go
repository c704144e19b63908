package cluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

// rand3 makes names differ.
func rand3() string { return rand.Text()[:3] }

func TestATokenIsForOneMachine(t *testing.T) {
	c := runControl(t)
	tok := token(t, c, TokenOptions{})
	dir := t.TempDir()
	first := JoinOptions{Dir: dir, Name: "a", Token: tok}
	place, err := Join(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, Place{Kind: Node, Name: "a"}, place)
	got, err := Look(dir)
	require.NoError(t, err)
	require.Equal(t, place, got)

	_, err = Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "b", Token: tok})
	requireClass(t, fault.Invalid, err)
	require.ErrorContains(t, err, "this token has been used by another machine")
	require.Equal(t, "`brisk node token` on the control node makes a new one.", fault.HintOf(err))

	// The machine that did not hear the answer asks again.
	require.NoError(t, os.Remove(memberPath(dir)))
	_, err = Join(t.Context(), first)
	require.NoError(t, err)
	_, err = Join(t.Context(), first)
	requireClass(t, fault.Exists, err)
	require.Equal(t, "`brisk node leave` ends that.", fault.HintOf(err))

	// But not once it has been removed.
	_, err = c.Remove("a")
	require.NoError(t, err)
	require.NoError(t, os.Remove(memberPath(dir)))
	_, err = Join(t.Context(), first)
	require.ErrorContains(t, err, "the control node does not know this token")
}

func TestTokensExpire(t *testing.T) {
	c := runControl(t)
	tok := token(t, c, TokenOptions{Expires: time.Hour})
	c.clock.set(time.Now().Add(59 * time.Minute))
	dir := t.TempDir()
	_, err := Join(t.Context(), JoinOptions{Dir: dir, Name: "a", Token: tok})
	require.NoError(t, err)
	require.NoError(t, os.Remove(memberPath(dir)))
	c.clock.set(time.Now().Add(61 * time.Minute))
	_, err = Join(t.Context(), JoinOptions{Dir: dir, Name: "a", Token: tok})
	requireClass(t, fault.Invalid, err)
	require.ErrorContains(t, err, "this token has expired")
	_, err = Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "b", Token: tok})
	require.ErrorContains(t, err, "has expired")
	_, err = c.NewToken(TokenOptions{Expires: -time.Second})
	requireClass(t, fault.Invalid, err)
}

func TestReusableTokensGoWithTheFirstRemoval(t *testing.T) {
	c := runControl(t)
	tok := token(t, c, TokenOptions{Reusable: true, Expires: 24 * time.Hour})
	for _, name := range []string{"a", "b"} {
		_, err := Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: name, Token: tok})
		require.NoError(t, err)
	}
	withdrawn, err := c.Remove("a")
	require.NoError(t, err)
	require.Equal(t, 1, withdrawn)
	_, err = Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "a", Token: tok})
	require.ErrorContains(t, err, "the control node does not know this token")
}

func TestAWrongSecretDoesNotSayWhichPartWasRight(t *testing.T) {
	c := runControl(t)
	for name, spoil := range map[string]func(*Token){
		"secret": func(k *Token) { k.Secret[31] ^= 1 },
		"id":     func(k *Token) { k.ID[0] ^= 1 },
	} {
		tok := token(t, c, TokenOptions{})
		spoil(&tok)
		_, err := Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "a", Token: tok})
		requireClass(t, fault.Invalid, err)
		require.ErrorContains(t, err, "the control node does not know this token", name)
	}
}

func TestSecretsAreKeptHashed(t *testing.T) {
	c := runControl(t)
	tok := token(t, c, TokenOptions{})
	b, err := os.ReadFile(filepath.Join(c.opts.Dir, "registry.json"))
	require.NoError(t, err)
	require.Contains(t, string(b), tok.id())
	for _, text := range []string{string(tok.Secret[:]), Fingerprint(tok.Secret).String()} {
		require.NotContains(t, string(b), text)
	}
}

func TestNamesAreOfOneMachine(t *testing.T) {
	c := runControl(t)
	dir := join(t, c, "a")
	for name, want := range map[string]string{
		"a": "the cluster has another machine by the name a", "A": "the cluster has another machine by the name a",
		"c": "the control node has the name c itself",
	} {
		_, err := Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: name, Token: token(t, c, TokenOptions{})})
		requireClass(t, fault.Exists, err)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, os.Remove(memberPath(dir)))
	_, err := Join(t.Context(), JoinOptions{Dir: dir, Name: "b", Token: token(t, c, TokenOptions{})})
	require.ErrorContains(t, err, "this machine is a member already, by the name a")
	_, err = Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "no good", Token: token(t, c, TokenOptions{})})
	requireClass(t, fault.Invalid, err)
}

func TestJoiningEndsWhereItCannotBeKept(t *testing.T) {
	c := runControl(t)
	o := JoinOptions{Dir: t.TempDir(), Name: "a", Token: token(t, c, TokenOptions{})}
	full := fault.New(fault.DiskFull, "no space")
	o.Keep = func(string, map[string]string) error { return full }
	_, err := Join(t.Context(), o)
	require.Equal(t, full, err)
	place, err := Look(o.Dir)
	require.NoError(t, err)
	require.Equal(t, Alone, place.Kind)
	o.Keep = nil
	_, err = Join(t.Context(), o)
	require.NoError(t, err, "with the same token")
}

// TestTheSecretGoesOnlyToTheCluster has servers at the token's address that are
// something else, and listens to what they are told.
func TestTheSecretGoesOnlyToTheCluster(t *testing.T) {
	c, other := runControl(t), runControl(t)
	tok := token(t, c, TokenOptions{})
	node := runNode(t, c, "n") // of the cluster, but not its control node
	forged := pair(other.cert.Load().Leaf, c.authority, other.key)
	for name, cert := range map[string]*tls.Certificate{
		"another cluster's control node":             other.cert.Load(),
		"another's, that shows this one's authority": forged,
		"a node": node.cert.Load(),
		"the control node's certificate without chain": {Certificate: c.cert.Load().Certificate[:1], PrivateKey: c.key},
	} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}})
		require.NoError(t, err)
		heard := make(chan int, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				heard <- 0
				return
			}
			defer conn.Close()
			n, _ := conn.Read(make([]byte, 1000))
			heard <- n
		}()
		lost := tok
		lost.Addresses = []string{l.Addr().String()}
		_, err = Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "a", Token: lost})
		requireClass(t, fault.Invalid, err)
		require.Zero(t, <-heard, name)
		l.Close()
	}
	_, err := Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "a", Token: tok})
	require.NoError(t, err, "the right one at last")
}

func TestJoinTriesAllAddresses(t *testing.T) {
	c, other := runControl(t), runControl(t)
	tok := token(t, c, TokenOptions{})
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dead.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, says nothing
	require.NoError(t, err)
	defer silent.Close()
	tok.Addresses = []string{dead.Addr().String(), silent.Addr().String(), other.Addr().String(), c.Addr().String()}
	_, err = Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "a", Token: tok})
	require.NoError(t, err)
	tok.Addresses = []string{dead.Addr().String()}
	_, err = Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "b", Token: tok})
	requireClass(t, fault.Unavailable, err)
	tok.Addresses = []string{silent.Addr().String()}
	ctx, cancel := context.WithTimeout(t.Context(), beatTime)
	defer cancel()
	_, err = Join(ctx, JoinOptions{Dir: t.TempDir(), Name: "b", Token: tok})
	require.Error(t, err)
}

func TestJoiningIsLimitedInRate(t *testing.T) {
	c := runControl(t)
	tok := token(t, c, TokenOptions{})
	tok.Secret[0] ^= 1
	refused := func() bool {
		_, err := Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "a", Token: tok})
		return fault.Is(err, fault.Exhausted)
	}
	require.Eventually(t, refused, soon, time.Microsecond) // a slow machine gets some more in
	c.control.joins.mu.Lock()
	c.control.joins.at = time.Now().Add(-10 * joinInterval)
	c.control.joins.mu.Unlock()
	_, err := Join(t.Context(), JoinOptions{Dir: t.TempDir(), Name: "a", Token: token(t, c, TokenOptions{})})
	require.NoError(t, err)
}

func TestLeave(t *testing.T) {
	c := runControl(t)
	dir := join(t, c, "a")
	a := run(t, options(dir, ""))
	requireSees(t, c, "a")
	require.NoError(t, a.Close())
	told, err := Leave(t.Context(), dir)
	require.NoError(t, err)
	require.True(t, told)
	require.NoDirExists(t, dir)
	require.Len(t, c.Status().Members, 1)

	dir = join(t, c, "a")
	require.NoError(t, c.Close())
	told, err = Leave(t.Context(), dir)
	require.NoError(t, err)
	require.False(t, told)
	place, err := Look(dir)
	require.NoError(t, err)
	require.Equal(t, Alone, place.Kind)

	place, err = Look(c.opts.Dir)
	require.NoError(t, err)
	require.Equal(t, Control, place.Kind)
	_, err = Join(t.Context(), JoinOptions{Dir: c.opts.Dir, Name: "x", Token: newToken(Fingerprint{}, []string{"127.0.0.1:1"})})
	requireClass(t, fault.Exists, err)
}

func TestTokenText(t *testing.T) {
	tok := newToken(Fingerprint{1, 2, 3}, []string{"10.0.0.1:7720", "[fd00::1]:7720", "brisk.example.com:1"})
	text := tok.String()
	require.True(t, strings.HasPrefix(text, "brisk1_"))
	got, err := ParseToken("  " + text + "\n")
	require.NoError(t, err)
	require.Equal(t, tok, got)
	for i := range text {
		_, err := ParseToken(text[:i])
		requireClass(t, fault.Invalid, err)
		spoiled := []byte(text)
		spoiled[i] ^= 1
		_, err = ParseToken(string(spoiled))
		requireClass(t, fault.Invalid, err)
	}
	require.Equal(t, "Copy the whole line that `brisk node token` printed.", fault.HintOf(func() error { _, err := ParseToken("x"); return err }()))
}

func TestAddresses(t *testing.T) {
	for _, s := range []string{"10.0.0.1:1", "[::1]:65535", "a-b.c_d:7720", "[fe80::1%eth0]:1"} {
		require.True(t, validAddress(s), s)
	}
	for _, s := range []string{"", ":1", "a", "a:0", "a:65536", "a:http", "0.0.0.0:1", "[::]:1", "a b:1", "a/b:1", strings.Repeat("a", 300) + ":1"} {
		require.False(t, validAddress(s), s)
	}
	at := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 77}
	for asked, want := range map[string]string{
		"": "192.0.2.1:77", "example.com": "example.com:77", "example.com:8": "example.com:8", "fd00::1": "", "[fd00::1]": "[fd00::1]:77",
	} {
		got, err := advertised(asked, at)
		if want == "" {
			requireClass(t, fault.Invalid, err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []string{want}, got)
	}
	_, err := advertised("a b", at)
	requireClass(t, fault.Invalid, err)
}
