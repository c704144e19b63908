// Package network hands out network namespaces for sandboxes: made beforehand, so
// that a cold start does not wait for the kernel, and used once.
//
// # What a sandbox sees
//
// One interface, eth0, with one IPv4 address in a subnet of four (/30), whose other
// usable address is the gateway: the host's end of a veth pair. The gateway has the
// same hardware address everywhere, and both ends know each other by permanent
// neighbour entries: nothing has to be asked for by ARP, and a snapshot that is
// restored into another namespace finds its gateway where it was. There is no IPv6.
//
// # What it may reach
//
// Whatever the host reaches through its routes, masqueraded as the host, except, and
// unless Policy.Allow names it: the host itself, other sandboxes, private networks,
// link-local addresses (where clouds keep their metadata service), carrier-grade NAT,
// loopback, multicast and reserved ranges. Those are refused, not dropped, so that
// programs fail at once. Nothing outside can connect to a sandbox. The host's
// resolvers can always be asked on port 53, wherever they are; if the host asks one
// on its own loopback, a relay stands in for it.
//
// # What it changes on the host
//
// One nftables table, brisk_NAME; the interfaces briskNAME-N; files in Options.Dir; a
// relay address on lo, if there is a relay. Where another program drops forwarded
// packets by default (Docker does), two rules in its chain let these interfaces
// pass. All of this goes with Close, and what a killed server left goes with the next
// Open. What stays is net.ipv4.ip_forward=1, because others may rely on it by then.
//
// # Who blocks whom
//
// Get returns at once while namespaces are in stock, and takes some 10 ms when not.
// Release only takes note: one goroutine makes and removes namespaces, since the
// kernel does both under one lock anyway. Close stops and waits for it.
package network
