// Package link is a slow network for benchmarks: a network namespace, which is the far
// side, and a point-to-point link to it with a delay and a rate. What passes is real
// TCP/IP of the kernel's, so that connecting, slow start and loss cost what they cost.
//
// It needs root and /dev/net/tun. Packets beyond a queue of 200 ms are dropped, as
// routers do.
package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/sandbox/netns"
)

// The two ends' addresses. There can be one link at a time.
const (
	nearAddress = "10.233.77.1"
	farAddress  = "10.233.77.2"
	device      = "brisk-link"
)

// queue is how much of the link's time may be waiting for it.
const queue = 200 * time.Millisecond

// Link is a link that is up.
type Link struct {
	namespace string
	near, far *os.File // TUN devices
	passed    atomic.Int64

	mu        sync.Mutex
	listeners []net.Listener
	wg        sync.WaitGroup
}

// Open makes a link with a round-trip time and a rate in bits per second, each way.
// dir is where it keeps its namespace. Close removes everything.
func Open(dir string, roundTrip time.Duration, rate float64) (_ *Link, err error) {
	l := &Link{namespace: filepath.Join(dir, "far.netns")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("simulate a link: %w", err), l.Close())
		}
	}()
	if err := netns.New(l.namespace); err != nil {
		return l, err
	}
	if l.near, err = tun(nearAddress, farAddress); err != nil {
		return l, err
	}
	if err := netns.Do(l.namespace, func() (err error) {
		l.far, err = tun(farAddress, nearAddress)
		return err
	}); err != nil {
		return l, err
	}
	l.wg.Go(func() { relay(l.near, l.far, roundTrip/2, rate, nil) })
	l.wg.Go(func() { relay(l.far, l.near, roundTrip/2, rate, &l.passed) })
	return l, nil
}

// tun makes this namespace's end.
func tun(address, peer string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(device)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	f := os.NewFile(uintptr(fd), "tun")
	dev, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.AddrAdd(dev, &netlink.Addr{
			IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(32, 32)},
			Peer:  &net.IPNet{IP: net.ParseIP(peer), Mask: net.CIDRMask(32, 32)},
		})
	}
	if err == nil {
		err = netlink.LinkSetUp(dev)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// packet is on its way.
type packet struct {
	due  time.Time
	data []byte
}

// relay carries packets until an end is closed.
func relay(from, to *os.File, delay time.Duration, rate float64, passed *atomic.Int64) {
	way := make(chan packet, 1<<14)
	defer close(way)
	go func() {
		for p := range way {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.data) // what cannot be delivered is lost
		}
	}()
	var free time.Time // when the link has carried what it has
	for {
		data := make([]byte, 2048)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		now := time.Now()
		if free.Before(now) {
			free = now
		}
		if free.Sub(now) > queue {
			continue
		}
		free = free.Add(time.Duration(float64(n*8) / rate * float64(time.Second)))
		if passed != nil {
			passed.Add(int64(n))
		}
		way <- packet{free.Add(delay), data[:n]}
	}
}

// Passed is how many bytes have come from the far side, headers and all.
func (l *Link) Passed() int64 { return l.passed.Load() }

// Listen gives a listener on the far side, which the near side can dial.
func (l *Link) Listen() (listener net.Listener, err error) {
	err = netns.Do(l.namespace, func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(farAddress, "0"))
		return err
	})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.listeners = append(l.listeners, listener)
	l.mu.Unlock()
	return listener, nil
}

// Forward has the far side lead to an address on the near side that costs nothing to
// reach: a server there is behind the link then. It gives the address to dial.
func (l *Link) Forward(to string) (string, error) {
	listener, err := l.Listen()
	if err != nil {
		return "", err
	}
	go serve(listener, func(in net.Conn) {
		out, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer out.Close()
		go func() {
			_, _ = io.Copy(out, in)
			_ = out.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(in, out)
	})
	return listener.Addr().String(), nil
}

func serve(listener net.Listener, fn func(net.Conn)) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			fn(c)
		}()
	}
}

// Throughput is what one plain TCP connection carries, in bytes per second, once it is at
// speed: the second half of a transfer of several seconds.
func (l *Link) Throughput(bytes int64) (float64, error) {
	listener, err := l.Listen()
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	go serve(listener, func(c net.Conn) {
		block := make([]byte, 64<<10)
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	c, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := io.CopyN(io.Discard, c, bytes/2); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := io.CopyN(io.Discard, c, bytes-bytes/2); err != nil {
		return 0, err
	}
	return float64(bytes-bytes/2) / time.Since(began).Seconds(), nil
}

// Close takes the link down.
func (l *Link) Close() error {
	var errs []error
	l.mu.Lock()
	for _, listener := range l.listeners {
		_ = listener.Close() // some are closed already
	}
	l.mu.Unlock()
	for _, f := range []*os.File{l.near, l.far} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	l.wg.Wait()
	return errors.Join(append(errs, netns.Remove(l.namespace))...)
}
