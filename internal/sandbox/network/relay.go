package network

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// relay passes DNS queries from an address that sandboxes can reach to a resolver
// that only the host can, as it is when the host's resolv.conf names 127.0.0.53. It
// does not look into the messages.
type relay struct {
	name     string // of the server
	addr     netip.Addr
	upstream string
	udp      net.PacketConn
	tcp      net.Listener
	wait     sync.WaitGroup
	slots    *semaphore.Weighted
	cancel   context.CancelFunc
}

const (
	relayTimeout = 5 * time.Second // a resolver's client asks again after as long
	relayQueries = 256             // at once; more are dropped, and asked again
	messageSize  = 64 << 10        // the largest DNS message
)

// startRelay puts addr on the host's lo and serves there.
func startRelay(name string, addr, upstream netip.Addr) (*relay, error) {
	if err := addLoopback(name, addr); err != nil {
		return nil, err
	}
	r := &relay{
		name: name, addr: addr, upstream: netip.AddrPortFrom(upstream, 53).String(), slots: semaphore.NewWeighted(relayQueries),
	}
	at := netip.AddrPortFrom(addr, 53).String()
	var err error
	if r.udp, err = net.ListenPacket("udp4", at); err == nil {
		if r.tcp, err = net.Listen("tcp4", at); err != nil {
			_ = r.udp.Close()
		}
	}
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "listen for", "name queries of sandboxes"), removeLoopback(name))
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.wait.Go(func() { r.serveUDP(ctx) })
	r.wait.Go(func() { r.serveTCP(ctx) })
	return r, nil
}

func (r *relay) close() error {
	r.cancel()
	_ = r.udp.Close()
	_ = r.tcp.Close()
	r.wait.Wait()
	return removeLoopback(r.name)
}

func (r *relay) serveUDP(ctx context.Context) {
	b := make([]byte, messageSize)
	for ctx.Err() == nil {
		n, from, err := r.udp.ReadFrom(b)
		if err != nil {
			continue
		}
		if !r.slots.TryAcquire(1) {
			continue
		}
		query := append([]byte(nil), b[:n]...)
		r.wait.Go(func() {
			defer r.slots.Release(1)
			if answer, err := r.ask(ctx, query); err == nil {
				_, _ = r.udp.WriteTo(answer, from)
			}
		})
	}
}

func (r *relay) ask(ctx context.Context, query []byte) ([]byte, error) {
	c, stop, err := r.dial(ctx, "udp")
	if err != nil {
		return nil, err
	}
	defer stop()
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	b := make([]byte, messageSize)
	n, err := c.Read(b)
	return b[:n], err
}

// dial connects upstream; stop closes the connection, as the end of ctx does.
func (r *relay) dial(ctx context.Context, network string) (net.Conn, func(), error) {
	c, err := (&net.Dialer{Timeout: relayTimeout}).DialContext(ctx, network, r.upstream)
	if err != nil {
		return nil, nil, err
	}
	unhook := context.AfterFunc(ctx, func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(relayTimeout))
	return c, func() { unhook(); _ = c.Close() }, nil
}

func (r *relay) serveTCP(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := r.tcp.Accept()
		if err != nil {
			continue
		}
		if !r.slots.TryAcquire(1) {
			_ = c.Close()
			continue
		}
		r.wait.Go(func() {
			defer r.slots.Release(1)
			r.splice(ctx, c)
		})
	}
}

func (r *relay) splice(ctx context.Context, c net.Conn) {
	defer func() { _ = c.Close() }()
	up, stop, err := r.dial(ctx, "tcp")
	if err != nil {
		return
	}
	defer stop()
	unhook := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer unhook()
	_ = c.SetDeadline(time.Now().Add(relayTimeout))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, c)
		_ = up.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, up)
	_ = c.Close()
	<-done
}

// The relay's address is on lo, under a label that says whose it is.
func loopbackLabel(name string) string { return "lo:brisk" + name }

func addLoopback(name string, a netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.AddrReplace(lo, &netlink.Addr{IPNet: toIPNet(a, 32), Label: loopbackLabel(name)})
	}
	return fault.Wrap(err, "add address", a.String())
}

// removeLoopback removes the address of a server's relay, whichever it was.
func removeLoopback(name string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fault.Wrap(err, "find", "lo")
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(lo, netlink.FAMILY_V4) })
	if err != nil {
		return fault.Wrap(err, "list", "addresses of lo")
	}
	for _, a := range addrs {
		if a.Label != loopbackLabel(name) {
			continue
		}
		if err := netlink.AddrDel(lo, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fault.Wrap(err, "remove address", a.String())
		}
	}
	return nil
}
