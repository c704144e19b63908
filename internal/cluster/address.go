package cluster

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// validAddress reports whether s is host:port, with a port from 1 to 65535 and a
// host that is an address or a name.
func validAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || len(s) > maxAddress {
		return false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return !ip.IsUnspecified()
	}
	return !strings.ContainsFunc(host, func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// advertised gives the addresses under which others may reach a listener. What
// was asked for wins; a listener on one address is reached there; else it may be
// any of the machine's.
func advertised(asked string, listener net.Addr) ([]string, error) {
	tcp, is := listener.(*net.TCPAddr)
	if !is {
		return nil, fault.New(fault.Internal, "listening at %v", listener)
	}
	port := strconv.Itoa(tcp.Port)
	if asked != "" {
		if !strings.Contains(asked, ":") || strings.HasSuffix(asked, "]") {
			asked = net.JoinHostPort(strings.Trim(asked, "[]"), port)
		}
		if !validAddress(asked) {
			return nil, fault.New(fault.Invalid, "%q is not an address that others could reach: want host or host:port", asked)
		}
		return []string{asked}, nil
	}
	if !tcp.IP.IsUnspecified() {
		return []string{tcp.String()}, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fault.Wrap(err, "look for", "addresses of this machine")
	}
	var found []string
	for _, a := range all {
		n, is := a.(*net.IPNet)
		if is && n.IP.IsGlobalUnicast() && (n.IP.To4() != nil || tcp.IP.To4() == nil) && len(found) < maxTokenAddresses {
			found = append(found, net.JoinHostPort(n.IP.String(), port))
		}
	}
	if len(found) == 0 {
		return nil, fault.New(fault.Machine, "this machine has no address that others could reach").
			WithHint("Say with --advertise which one others should use.")
	}
	return found, nil
}

// facing gives the address of this machine that a connection goes out from, with
// the port of our listener: where the other side reaches us.
func facing(conn net.Conn, listener net.Addr) string {
	local, is := conn.LocalAddr().(*net.TCPAddr)
	own, also := listener.(*net.TCPAddr)
	if !is || !also {
		return ""
	}
	return net.JoinHostPort(local.IP.String(), strconv.Itoa(own.Port))
}
