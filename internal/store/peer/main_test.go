package peer

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is how long tests wait for what happens in the background.
const soon = 20 * time.Second

// rig is a cluster in one process, over real connections.
type rig struct {
	t     testing.TB
	nodes map[string]*node // those that are members
	epoch uint64

	mu  sync.Mutex
	all map[string]*node // and those that were
}

// node is one machine of it.
type node struct {
	rig    *rig
	name   string
	addr   string
	cert   tls.Certificate
	peers  *Peers
	server *http.Server

	mu     sync.Mutex
	chunks map[store.Digest][]byte

	asked   atomic.Int64                     // for chunks
	instead atomic.Pointer[http.HandlerFunc] // answers for chunks, if there is one
	hole    atomic.Bool                      // what is sent to it vanishes
	dials   atomic.Int64                     // to it
}

func newRig(t testing.TB, names ...string) *rig { return newRigWith(t, Options{}, names...) }

func newRigWith(t testing.TB, o Options, names ...string) *rig {
	t.Helper()
	r := &rig{t: t, nodes: map[string]*node{}, all: map[string]*node{}}
	for _, name := range names {
		r.add(o, name)
	}
	r.meet()
	return r
}

func (r *rig) add(o Options, name string) *node {
	r.t.Helper()
	n := &node{rig: r, name: name, cert: certificate(r.t, name), chunks: map[store.Digest][]byte{}}
	o.Self, o.Listens, o.Dial, o.Serve = name, true, r.dialer(n), n.serve
	o.Log = slog.New(slog.DiscardHandler)
	if o.Deadline == 0 {
		o.Deadline = 5 * time.Second // nothing here is slow but on purpose
	}
	n.peers = New(o)
	n.peers.firstPause, n.peers.least = time.Millisecond, o.Deadline
	mux := http.NewServeMux()
	handle := func(pattern string, h func(http.ResponseWriter, *http.Request, string)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, q *http.Request) { h(w, q, q.TLS.PeerCertificates[0].Subject.CommonName) })
	}
	handle(PatternPing, n.peers.ServePing)
	handle(PatternAnnounce, n.peers.ServeAnnounce)
	handle(PatternChunk, func(w http.ResponseWriter, q *http.Request, from string) {
		n.asked.Add(1)
		if h := n.instead.Load(); h != nil {
			(*h)(w, q)
			return
		}
		n.peers.ServeChunk(w, q, from)
	})
	n.server = &http.Server{Handler: mux, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	n.listen("127.0.0.1:0")
	r.nodes[name] = n
	r.mu.Lock()
	r.all[name] = n
	r.mu.Unlock()
	r.t.Cleanup(n.stop)
	return n
}

func (n *node) listen(addr string) {
	l, err := tls.Listen("tcp", addr, &tls.Config{
		Certificates: []tls.Certificate{n.cert}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"},
	})
	require.NoError(n.rig.t, err)
	n.addr = l.Addr().String()
	go func() { _ = n.server.Serve(l) }()
}

func (n *node) stop() {
	_ = n.server.Close()
	_ = n.peers.Close()
}

// meet tells all nodes of all others, and waits until they have connected.
func (r *rig) meet() {
	r.t.Helper()
	for _, n := range r.nodes {
		n.peers.SetMembers(r.others(n))
	}
	for _, n := range r.nodes {
		for _, m := range n.peers.table.Load().machines {
			require.Eventually(r.t, func() bool { return m.ready() != nil }, soon, time.Millisecond, "%s reaches %s", n.name, m.member.Name)
		}
	}
}

func (r *rig) others(n *node) (l []Member) {
	for _, other := range r.nodes {
		if other != n {
			l = append(l, Member{Name: other.name, Address: other.addr, Epoch: r.epoch})
		}
	}
	return l
}

func (r *rig) dialer(from *node) func(context.Context, Member) (net.Conn, error) {
	return func(ctx context.Context, m Member) (net.Conn, error) {
		r.mu.Lock()
		to := r.all[m.Name]
		r.mu.Unlock()
		to.dials.Add(1)
		raw, err := new(net.Dialer).DialContext(ctx, "tcp", m.Address)
		if err != nil {
			return nil, err
		}
		c := tls.Client(&wire{Conn: raw, to: to}, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{from.cert}})
		if err := c.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
}

// wire is a connection that may become a hole.
type wire struct {
	net.Conn
	to *node
}

func (w *wire) Write(b []byte) (int, error) {
	if w.to.hole.Load() {
		return len(b), nil
	}
	return w.Conn.Write(b)
}

func (n *node) serve(_ context.Context, workspace string, name store.Digest) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, is := n.chunks[name]
	if !is || workspace != "w" {
		return nil, fault.New(fault.NotFound, "not here")
	}
	return b, nil
}

// content is what the chunk of a name is, sealed.
func content(name store.Digest) []byte { return fmt.Appendf(nil, "the content of %s", name) }

// has gives the node a chunk, and announces it.
func (n *node) has(name store.Digest) {
	n.mu.Lock()
	n.chunks[name] = content(name)
	n.mu.Unlock()
	n.peers.Announce("w", name)
}

var errWrong = errors.New("that is something else")

// fetch gets a chunk from peers.
func (n *node) fetch(name store.Digest) error {
	return n.peers.Fetch(n.rig.t.Context(), "w", name, func(b []byte) error {
		if string(b) != string(content(name)) {
			return errWrong
		}
		return nil
	})
}

// requireKnows waits until the owners of a name know that a holder has it.
func (r *rig) requireKnows(name store.Digest, holder string) {
	r.t.Helper()
	for _, n := range r.nodes {
		l, k := n.peers.table.Load().owners(&name)
		for _, m := range l[:k] {
			if m == nil && n.name != holder { // n is an owner
				require.Eventually(r.t, func() bool {
					l := n.peers.directory.find(&name)
					return len(l) > 0 && l[0] == holder
				}, soon, time.Millisecond)
			}
		}
	}
}

// answering has a node answer for chunks as h does; nil: as it should.
func (n *node) answering(h http.HandlerFunc) {
	if h == nil {
		n.instead.Store(nil)
		return
	}
	n.instead.Store(&h)
}

// of gives what a node counts of a peer.
func (n *node) of(peer string) One {
	for _, one := range n.peers.Stats().Peers {
		if one.Name == peer {
			return one
		}
	}
	return One{}
}

func name(i int) store.Digest { return store.Sum(fmt.Append(nil, i)) }

// nameOwnedBy finds a name whose first owners, as n sees them, are these.
func (n *node) nameOwnedBy(owners ...string) store.Digest {
	for i := 0; ; i++ {
		d := name(i)
		l, k := n.peers.table.Load().owners(&d)
		var have []string
		for _, m := range l[:k] {
			if m == nil {
				have = append(have, n.name)
			} else {
				have = append(have, m.member.Name)
			}
		}
		if fmt.Sprint(have[:len(owners)]) == fmt.Sprint(owners) {
			return d
		}
	}
}

func certificate(t testing.TB, name string) tls.Certificate {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func requireAbsent(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, fault.NotFound, fault.ClassOf(err), "%v", err)
}
