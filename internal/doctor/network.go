package doctor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (m *machine) networkNamespaces(context.Context, Options) Result {
	const name = "network namespaces"
	if err := m.network(); err != nil {
		return fail(name, "Run as root on a kernel with CONFIG_NET_NS and CONFIG_VETH (modprobe veth); in a container, with --privileged.",
			"one with a veth pair could not be made: %v", err)
	}
	return ok(name, "with veth pairs")
}

func (m *machine) firewall(context.Context, Options) Result {
	const name = "nf_tables"
	if err := m.nat(); err != nil {
		return fail(name, "Boot a kernel with CONFIG_NF_TABLES, CONFIG_NFT_NAT and CONFIG_NFT_MASQ (modprobe nf_tables nft_chain_nat nft_masq).",
			"masquerading could not be set up in a namespace: %v", err)
	}
	return ok(name, "with masquerading")
}

// forwarding looks for other firewalls of the host that drop what is forwarded by
// default: Docker's is the usual one. It is only worth knowing, since Brisk lets
// its own interfaces pass there, but it is where to look if a sandbox has no network.
func (m *machine) forwarding(context.Context, Options) Result {
	const name = "forwarding"
	chains, err := m.dropChains()
	switch {
	case err != nil:
		return ok(name, "not known: %v", err) // the check of nf_tables says what is to be done
	case len(chains) > 0:
		return ok(name, "dropped by default in chain %s, where Brisk lets its own interfaces pass", strings.Join(chains, ", "))
	}
	return ok(name, "no other firewall drops it by default")
}

// uplink looks for a default route, in IPv4 or IPv6.
func (m *machine) uplink(context.Context, Options) Result {
	const name = "uplink"
	for line := range strings.Lines(m.read("proc/net/route")) {
		// Interface, destination, gateway, flags, ..., mask; addresses in hexadecimal.
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return ok(name, "default route through %s", f[0])
		}
	}
	return warn(name, "ip route add default via GATEWAY.", "no IPv4 default route: sandboxes and image builds have no network")
}

// inNamespace calls try in a network namespace of its own, which is gone soon
// after it returns: the thread that holds it ends with the goroutine. The
// process's first thread would not end but stay in there, and with it /proc/self,
// so it is kept out of this.
func inNamespace(try func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- inNamespace(try) // on another thread, since this one is held here
			return
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("unshare: %w", err)
			return
		}
		done <- try()
	}()
	return <-done
}

func tryNetwork() error {
	return inNamespace(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		a := netlink.NewLinkAttrs()
		a.Name = "doctor0"
		return h.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "doctor1"})
	})
}

func tryNAT() error {
	return inNamespace(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Name: "doctor", Family: nftables.TableFamilyIPv4})
		chain := c.AddChain(&nftables.Chain{
			Name: "post", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}})
		return errors.Join(c.Flush(), c.CloseLasting())
	})
}

func dropChains() ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, ch := range chains {
		if ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward || ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop {
			continue
		}
		if ch.Table.Family == nftables.TableFamilyIPv4 || ch.Table.Family == nftables.TableFamilyINet {
			names = append(names, ch.Table.Name+" "+ch.Name)
		}
	}
	return names, nil
}
