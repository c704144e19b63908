package network

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"brisk.dev/brisk/internal/fault"
)

// The hardware addresses of all veth pairs: locally administered. They may be the
// same everywhere, because no two of them are on one link.
var (
	gatewayMAC = net.HardwareAddr{0x02, 0x62, 0x72, 0x00, 0x00, 0x01}
	sandboxMAC = net.HardwareAddr{0x02, 0x62, 0x72, 0x00, 0x00, 0x02}
)

// slotBits is the length of a slot's subnet: network, gateway, sandbox, broadcast.
const slotBits = 30

// closed are the networks that are not the public internet.
var closed = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),      // this network
	netip.MustParsePrefix("10.0.0.0/8"),     // private
	netip.MustParsePrefix("100.64.0.0/10"),  // carrier-grade NAT, and the sandboxes themselves
	netip.MustParsePrefix("127.0.0.0/8"),    // loopback
	netip.MustParsePrefix("169.254.0.0/16"), // link-local: metadata services
	netip.MustParsePrefix("172.16.0.0/12"),  // private
	netip.MustParsePrefix("192.0.0.0/24"),   // protocol assignments
	netip.MustParsePrefix("192.168.0.0/16"), // private
	netip.MustParsePrefix("198.18.0.0/15"),  // benchmarks
	netip.MustParsePrefix("224.0.0.0/4"),    // multicast
	netip.MustParsePrefix("240.0.0.0/4"),    // reserved, broadcast
}

// subnet is the i-th slot's part of the range: its gateway and its sandbox.
func subnet(r netip.Prefix, i int) (gateway, sandbox netip.Addr) {
	base := binary.BigEndian.Uint32(r.Addr().AsSlice()) + uint32(i)<<(32-slotBits)
	at := func(n uint32) netip.Addr {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], base+n)
		return netip.AddrFrom4(b)
	}
	return at(1), at(2)
}

// slots is how many slots a range has; the last one is kept for the relay.
func slots(r netip.Prefix) int { return 1<<(slotBits-r.Bits()) - 1 }

// freeRange finds a range that collides with no route and no address of the host,
// among 32, beginning with the seed-th, so that several servers rarely try the same.
func freeRange(seed byte) (netip.Prefix, error) {
	var used []netip.Prefix
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return netip.Prefix{}, fault.Wrap(err, "list", "routes")
	}
	for _, r := range routes {
		if p, ok := toPrefix(r.Dst); ok && p.Bits() > 0 {
			used = append(used, p)
		}
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return netip.Prefix{}, fault.Wrap(err, "list", "addresses")
	}
	for _, a := range addrs {
		if p, ok := toPrefix(a.IPNet); ok {
			used = append(used, p)
		}
	}
	for i := range 32 {
		r := netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 96 + (seed+byte(i))%32, 0, 0}), 16)
		if !slices.ContainsFunc(used, r.Overlaps) {
			return r, nil
		}
	}
	return netip.Prefix{}, fault.New(fault.Machine, "the host has routes into all of 100.96.0.0/11").
		WithHint("Name a free range of private addresses for the sandboxes.")
}

func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP.To4())
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a, ones), ok
}

func toIPNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

// dump lists something of the kernel's, again if it changed meanwhile; what has
// been listed after some tries is taken as it is.
func dump[T any](list func() ([]T, error)) (l []T, err error) {
	for range 10 {
		if l, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return l, err
		}
	}
	return l, nil
}
