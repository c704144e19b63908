package gvisor

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox/netns"
)

// links describes the network of a sandbox to its sentry: what a CreateLinksAndRoutes
// call takes. The field names are the sentry's.
type links struct {
	LoopbackLinks    []loopbackLink
	FDBasedLinks     []packetLink
	Defaultv4Gateway defaultRoute
}

type loopbackLink struct {
	Name      string
	Addresses []prefix
	Routes    []route
}

type packetLink struct {
	Name              string
	MTU               int
	Addresses         []prefix
	Routes            []route
	GSOMaxSize        uint32
	RXChecksumOffload bool
	LinkAddress       net.HardwareAddr
	QDisc             int
	Neighbors         []neighbor
	NumChannels       int
}

type prefix struct {
	Address   net.IP
	PrefixLen int
}

type route struct {
	Destination net.IPNet
	Gateway     net.IP
	MTU         uint32
}

type defaultRoute struct {
	Route route
	Name  string
}

type neighbor struct {
	IP           net.IP
	HardwareAddr net.HardwareAddr
}

const (
	qdiscFIFO = 1
	// packetBuffer is how many bytes of frames wait for the sentry, each way: the
	// kernel's default of 208 KiB loses some at full speed.
	packetBuffer = 4 << 20
)

var loopback = loopbackLink{
	Name:      "lo",
	Addresses: []prefix{{net.IPv4(127, 0, 0, 1).To4(), 8}, {net.IPv6loopback, 128}},
	Routes: []route{
		{Destination: net.IPNet{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}},
		{Destination: net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)}},
	},
}

// connectNetwork gives the sentry its network stack: the loopback, and the
// interfaces of the namespace, if there is one.
func connectNetwork(ctx context.Context, c *control, namespace string) error {
	l := links{LoopbackLinks: []loopbackLink{loopback}}
	var sockets []*os.File
	if namespace != "" {
		var err error
		if sockets, err = takeOver(namespace, &l); err != nil {
			return err
		}
	}
	defer func() {
		for _, s := range sockets {
			_ = s.Close()
		}
	}()
	return fault.Wrap(c.call(ctx, methodLinks, l, sockets, nil), "connect", "sandbox's network")
}

// takeOver describes the interfaces of a namespace, opens a packet socket on each,
// and takes their addresses from the host's kernel, which would otherwise answer
// for them besides the sentry.
func takeOver(path string, l *links) (sockets []*os.File, err error) {
	err = netns.Do(path, func() error {
		sockets, err = takeOverHere(l)
		return err
	})
	return sockets, fault.Wrap(err, "take over network namespace", path)
}

func takeOverHere(l *links) (sockets []*os.File, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := h.LinkList()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, s := range sockets {
				_ = s.Close()
			}
			sockets = nil
		}
	}()
	for _, link := range all {
		a := link.Attrs()
		if a.Flags&net.FlagUp == 0 || a.Flags&net.FlagLoopback != 0 {
			continue
		}
		p, err := describe(h, link, l)
		if err != nil {
			return sockets, err
		}
		if len(p.Addresses) == 0 {
			continue
		}
		s, err := packetSocket(a.Index)
		if err != nil {
			return sockets, err
		}
		sockets = append(sockets, s)
		l.FDBasedLinks = append(l.FDBasedLinks, p)
		if err := dropAddresses(h, link); err != nil {
			return sockets, err
		}
	}
	if len(sockets) == 0 {
		return sockets, fault.New(fault.Invalid, "it has no interface with an IPv4 address")
	}
	return sockets, nil
}

// describe reads addresses, routes and permanent neighbours of an interface.
func describe(h *netlink.Handle, link netlink.Link, l *links) (packetLink, error) {
	a := link.Attrs()
	p := packetLink{
		Name: a.Name, MTU: a.MTU, LinkAddress: a.HardwareAddr, NumChannels: 1,
		GSOMaxSize: a.GSOMaxSize, RXChecksumOffload: true, QDisc: qdiscFIFO,
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return p, err
	}
	for _, ad := range addrs {
		ones, _ := ad.Mask.Size()
		p.Addresses = append(p.Addresses, prefix{ad.IP, ones})
	}
	routes, err := h.RouteList(link, netlink.FAMILY_V4)
	if err != nil {
		return p, err
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			if r.Gw != nil {
				any4 := net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
				l.Defaultv4Gateway = defaultRoute{route{any4, r.Gw, uint32(r.MTU)}, a.Name}
			}
			continue
		}
		p.Routes = append(p.Routes, route{*r.Dst, r.Gw, uint32(r.MTU)})
	}
	neighbours, err := h.NeighList(a.Index, netlink.FAMILY_V4)
	if err != nil {
		return p, err
	}
	for _, n := range neighbours {
		if n.State&netlink.NUD_PERMANENT != 0 {
			p.Neighbors = append(p.Neighbors, neighbor{n.IP, n.HardwareAddr})
		}
	}
	return p, nil
}

func dropAddresses(h *netlink.Handle, link netlink.Link) error {
	addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, ad := range addrs {
		if err := h.AddrDel(link, &ad); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
	}
	return nil
}

// packetSocket opens a raw socket on an interface, with the header that lets
// segments larger than the MTU pass.
func packetSocket(index int) (*os.File, error) {
	// Protocol 0: nothing is received, and no slow unbinding is done, until bind says so.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "packet socket")
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		_ = f.Close()
		return nil, err
	}
	for _, o := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, packetBuffer); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	const allProtocols = 0x0300 // ETH_P_ALL in network order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allProtocols, Ifindex: index}); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
