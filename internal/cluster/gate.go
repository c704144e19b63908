package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits of who has not shown a certificate yet, or has none: a machine that joins.
// Members are not counted.
const (
	maxStrangers     = 64 // connections
	maxStrangersFrom = 16 // from one address
	handshakeTime    = 5 * time.Second
	strangerTime     = 30 * time.Second // of one connection, from its first byte to its last
)

// gate is a listener behind which everybody has done the TLS handshake, so that
// nobody keeps others waiting with a slow one.
type gate struct {
	inner    net.Listener
	patience time.Duration // with a handshake
	config   *tls.Config
	log      *slog.Logger
	ready    chan net.Conn
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu    sync.Mutex
	all   int
	from  map[netip.Addr]int
	conns map[*guest]struct{} // strangers
}

func newGate(inner net.Listener, config *tls.Config, patience time.Duration, log *slog.Logger) *gate {
	g := &gate{inner: inner, config: config, patience: patience, log: log, ready: make(chan net.Conn), from: map[netip.Addr]int{}, conns: map[*guest]struct{}{}}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.wg.Go(g.receive)
	return g
}

// receive takes connections until the listener is closed.
func (g *gate) receive() {
	for {
		c, err := g.inner.Accept()
		if err != nil {
			if g.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, mostly; others are about to close theirs
			case <-time.After(50 * time.Millisecond):
				continue
			case <-g.ctx.Done():
				return
			}
		}
		guest := g.enter(c)
		if guest == nil {
			_ = c.Close()
			continue
		}
		g.wg.Go(func() { g.greet(guest) })
	}
}

// greet does the handshake and passes the connection on.
func (g *gate) greet(c *guest) {
	t := tls.Server(c, g.config)
	ctx, cancel := context.WithTimeout(g.ctx, g.patience)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		g.log.Debug("a connection was refused", "from", c.RemoteAddr(), "err", err)
		_ = t.Close()
		return
	}
	if len(t.ConnectionState().PeerCertificates) > 0 {
		c.leave() // no stranger any more
	}
	select {
	case g.ready <- t:
	case <-g.ctx.Done():
		_ = t.Close()
	}
}

// Accept gives the next connection, a *tls.Conn.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.ready:
		return c, nil
	case <-g.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close ends the listener, and the connections of strangers.
func (g *gate) Close() error {
	g.cancel()
	err := g.inner.Close()
	g.mu.Lock()
	for c := range g.conns {
		_ = c.Conn.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
	return err
}

// Addr is the listener's.
func (g *gate) Addr() net.Addr { return g.inner.Addr() }

// guest is a stranger's connection, until it is known whose it is.
type guest struct {
	net.Conn
	gate  *gate
	from  netip.Addr
	timer *time.Timer
	once  sync.Once
}

// enter counts a stranger, and is nil if there are too many.
func (g *gate) enter(c net.Conn) *guest {
	var from netip.Addr
	if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		from = a.Addr()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= maxStrangers || g.from[from] >= maxStrangersFrom || g.ctx.Err() != nil {
		return nil
	}
	g.all++
	g.from[from]++
	s := &guest{Conn: c, gate: g, from: from}
	s.timer = time.AfterFunc(strangerTime, func() { _ = c.Close() })
	g.conns[s] = struct{}{}
	return s
}

// leave ends the counting.
func (s *guest) leave() {
	s.once.Do(func() {
		s.timer.Stop()
		g := s.gate
		g.mu.Lock()
		defer g.mu.Unlock()
		g.all--
		if g.from[s.from]--; g.from[s.from] == 0 {
			delete(g.from, s.from)
		}
		delete(g.conns, s)
	})
}

// Close closes the connection and lets another stranger in.
func (s *guest) Close() error {
	s.leave()
	return s.Conn.Close()
}
