package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox/netns"
)

// Slot is one namespace with its interface, for one sandbox.
type Slot struct {
	Path      string       // of the namespace, for sandbox.Spec.Netns
	Addr      netip.Addr   // of the sandbox
	Resolvers []netip.Addr // that the sandbox may ask

	pool    *Pool
	index   int
	gateway netip.Addr
	allowed bool // it has a chain of its own in the firewall
	resolv  string
}

// ResolvConf is what the sandbox's /etc/resolv.conf should say: the resolvers, and
// the host's search list and options.
func (s *Slot) ResolvConf() string { return s.resolv }

// Release gives the namespace back, to be removed soon. The sandbox must be
// destroyed: its processes hold the namespace otherwise. It may be called again.
func (s *Slot) Release() { s.pool.release(s) }

// link is the name of the host's end.
func (s *Slot) link() string { return fmt.Sprintf("%s%d", s.pool.linkPrefix(), s.index) }

// make creates the namespace and the veth pair. Nothing is left on an error.
func (s *Slot) make() (err error) {
	if err := netns.New(s.Path); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove())
		}
	}()
	ns, err := os.Open(s.Path)
	if err != nil {
		return fault.Wrap(err, "open", s.Path)
	}
	defer func() { _ = ns.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = s.link(), gatewayMAC
	attrs.MTU = s.pool.mtu
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: sandboxMAC,
		PeerNamespace: netlink.NsFd(ns.Fd()), PeerMTU: uint32(s.pool.mtu),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fault.New(fault.Machine, "make interface %s: %w", s.link(), err)
	}
	if err := s.hostEnd(); err != nil {
		return fault.Wrap(err, "set up interface", s.link())
	}
	return fault.Wrap(netns.Do(s.Path, s.sandboxEnd), "set up interface", "eth0 of "+s.Path)
}

func (s *Slot) hostEnd() error {
	// No IPv6, and no packet whose source is not the sandbox's address.
	for file, value := range map[string]string{"ipv6/conf/%s/disable_ipv6": "1", "ipv4/conf/%s/rp_filter": "1"} {
		err := os.WriteFile(filepath.Join("/proc/sys/net", fmt.Sprintf(file, s.link())), []byte(value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	l, err := netlink.LinkByName(s.link())
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: toIPNet(s.gateway, slotBits)}); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	return netlink.NeighSet(neighbour(l, s.Addr, sandboxMAC))
}

// sandboxEnd runs inside the namespace.
func (s *Slot) sandboxEnd() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return netlink.LinkSetUp(lo) },
		func() error { return netlink.AddrAdd(eth, &netlink.Addr{IPNet: toIPNet(s.Addr, slotBits)}) },
		func() error { return netlink.LinkSetUp(eth) },
		func() error { return netlink.NeighSet(neighbour(eth, s.gateway, gatewayMAC)) },
		func() error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: s.gateway.AsSlice()})
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func neighbour(l netlink.Link, a netip.Addr, mac []byte) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: l.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: mac,
	}
}

// remove removes interface and namespace, and what the kernel remembers of
// connections from the address, before somebody else gets it.
func (s *Slot) remove() error {
	err := removeLink(s.link())
	forgetConnections(s.Addr)
	return errors.Join(err, netns.Remove(s.Path))
}

// removeLink removes one end of a veth pair, and thereby both.
func removeLink(name string) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(l)
	}
	var none netlink.LinkNotFoundError
	if err == nil || errors.As(err, &none) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fault.Wrap(err, "remove interface", name)
}

// forgetConnections clears the connection tracking of an address. It is no harm if
// the kernel cannot: addresses come again only after thousands of others.
func forgetConnections(a netip.Addr) {
	f := &netlink.ConntrackFilter{}
	if f.AddIP(netlink.ConntrackOrigSrcIP, a.AsSlice()) == nil {
		_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f)
	}
}

// removeStale removes what slots of a killed server left: interfaces by their
// names, namespaces by their files.
func removeStale(prefix, dir string) error {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return fault.Wrap(err, "list", "interfaces")
	}
	var errs []error
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, prefix) {
			errs = append(errs, removeLink(l.Attrs().Name))
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fault.Wrap(err, "list", "network namespaces")
	}
	for _, e := range entries {
		errs = append(errs, netns.Remove(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}
