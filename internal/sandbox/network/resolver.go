package network

import (
	"net/netip"
	"os"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// resolvers is what a resolv.conf says.
type resolvers struct {
	servers []netip.Addr // IPv4 and not loopback
	local   []netip.Addr // those that only the host itself can ask
	rest    []string     // lines search and options
}

// readResolvers reads the host's configuration. If that names only the host's own
// stub of systemd, the file with the servers behind it is taken instead.
func readResolvers(root string) (resolvers, error) {
	b, err := os.ReadFile(root + "/etc/resolv.conf")
	if err != nil && !os.IsNotExist(err) {
		return resolvers{}, fault.Wrap(err, "read", "resolv.conf")
	}
	r := parseResolvers(string(b))
	if len(r.servers) > 0 {
		return r, nil
	}
	if b, err := os.ReadFile(root + "/run/systemd/resolve/resolv.conf"); err == nil {
		if behind := parseResolvers(string(b)); len(behind.servers) > 0 {
			return behind, nil
		}
	}
	return r, nil
}

func parseResolvers(text string) (r resolvers) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			a, err := netip.ParseAddr(f[1])
			switch {
			case err != nil:
			case a.Unmap().Is4() && !a.Unmap().IsLoopback():
				r.servers = append(r.servers, a.Unmap())
			default:
				r.local = append(r.local, a)
			}
		case "search", "domain", "options":
			r.rest = append(r.rest, strings.Join(f, " "))
		}
	}
	return r
}

// conf writes a resolv.conf.
func (r resolvers) conf() string {
	var s strings.Builder
	for _, a := range r.servers {
		s.WriteString("nameserver " + a.String() + "\n")
	}
	for _, l := range r.rest {
		s.WriteString(l + "\n")
	}
	return s.String()
}
