package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// firewall is the nftables table of one server. Its chains come before those of
// others (a verdict "drop" is final across tables, "accept" is not).
//
//	chain input   from a sandbox: what its policy allows; the relay; else refuse
//	chain forward answers pass; from a sandbox: what its policy allows; resolvers;
//	              closed networks refused; the rest passes; to a sandbox: drop
//	chain nat     from a sandbox to the outside: masquerade
//	chain slotN   what the policy of one sandbox allows, if it allows something
type firewall struct {
	prefix string // of the interfaces' names
	table  *nftables.Table

	mu       sync.Mutex // one transaction at a time
	policies *nftables.Set
}

// The protocol numbers and offsets that rules need.
const (
	offsetDaddr  = 16 // in the IPv4 header
	offsetSaddr  = 12
	offsetDport  = 2 // in the TCP or UDP header
	rejectReset  = 1 // NFT_REJECT_TCP_RST
	rejectICMPX  = 2 // NFT_REJECT_ICMPX_UNREACH
	rejectPolicy = 3 // NFT_REJECT_ICMPX_ADMIN_PROHIBITED
)

func tableName(name string) string { return "brisk_" + name }

// openFirewall replaces the table by a new one, in one transaction.
func openFirewall(name, prefix string, sandboxes netip.Prefix, resolvers []netip.Addr, relay netip.Addr) (*firewall, error) {
	if err := dropTable(name); err != nil {
		return nil, err
	}
	c, err := nftables.New()
	if err != nil {
		return nil, noNftables(err)
	}
	f := &firewall{prefix: prefix}
	f.table = c.AddTable(&nftables.Table{Name: tableName(name), Family: nftables.TableFamilyINet})
	f.policies = &nftables.Set{
		Table: f.table, Name: "policies", IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict,
	}
	closedSet := &nftables.Set{Table: f.table, Name: "closed", Constant: true, Interval: true, KeyType: nftables.TypeIPAddr}
	resolverSet := &nftables.Set{Table: f.table, Name: "resolvers", KeyType: nftables.TypeIPAddr}
	err = errors.Join(
		c.AddSet(f.policies, nil),
		c.AddSet(closedSet, intervals(closed)),
		c.AddSet(resolverSet, addresses(resolvers)))
	if err != nil {
		return nil, noNftables(err)
	}

	before := new(*nftables.ChainPriorityFilter - 10)
	chain := func(name string, hook *nftables.ChainHook, kind nftables.ChainType, p *nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Table: f.table, Name: name, Hooknum: hook, Type: kind, Priority: p})
	}
	input := chain("input", nftables.ChainHookInput, nftables.ChainTypeFilter, before)
	forward := chain("forward", nftables.ChainHookForward, nftables.ChainTypeFilter, before)
	nat := chain("nat", nftables.ChainHookPostrouting, nftables.ChainTypeNAT, nftables.ChainPriorityNATSource)
	rule := func(on *nftables.Chain, parts ...[]expr.Any) {
		var e []expr.Any
		for _, p := range parts {
			e = append(e, p...)
		}
		c.AddRule(&nftables.Rule{Table: f.table, Chain: on, Exprs: e})
	}
	// A reset for TCP, because the kernel sends few ICMP errors per second, and a
	// program whose error is not sent waits.
	refuse := func(on *nftables.Chain, parts ...[]expr.Any) {
		parts = slices.Clip(parts)
		rule(on, append(parts, protocolIs(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: rejectReset}})...)
		rule(on, append(parts, []expr.Any{&expr.Reject{Type: rejectICMPX, Code: rejectPolicy}})...)
	}
	from, to := interfaceIs(expr.MetaKeyIIFNAME, prefix), interfaceIs(expr.MetaKeyOIFNAME, prefix)

	rule(input, from, established(), accept())
	rule(input, from, ipv4(false), drop())
	rule(input, from, f.ownPolicy())
	if relay.IsValid() {
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			rule(input, from, destinationIs(relay), protocolIs(proto), port53(), accept())
		}
	}
	refuse(input, from)

	rule(forward, from, established(), accept())
	rule(forward, to, established(), accept())
	rule(forward, from, ipv4(false), drop())
	rule(forward, from, f.ownPolicy())
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		rule(forward, from, destinationIn(resolverSet), protocolIs(proto), port53(), accept())
	}
	refuse(forward, from, destinationIn(closedSet))
	rule(forward, to, drop())

	rule(nat, ipv4(true), sourceIn(sandboxes), notInterface(expr.MetaKeyOIFNAME, prefix), []expr.Any{&expr.Masq{}})
	if err := c.Flush(); err != nil {
		return nil, noNftables(err)
	}
	return f, nil
}

func noNftables(err error) error {
	return fault.New(fault.Machine, "set up the firewall of sandboxes: %w", err).
		WithHint("The kernel needs nf_tables with NAT (modprobe nf_tables nft_chain_nat nft_masq); `brisk doctor` checks it.")
}

// dropTable removes a server's table, if there is one.
func dropTable(name string) error {
	c, err := nftables.New()
	if err != nil {
		return noNftables(err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return noNftables(err)
	}
	for _, t := range tables {
		if t.Name == tableName(name) {
			c.DelTable(t)
			return fault.Wrap(c.Flush(), "remove", "firewall table "+t.Name)
		}
	}
	return nil
}

func (f *firewall) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := nftables.New()
	if err == nil {
		c.DelTable(f.table)
		err = c.Flush()
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fault.Wrap(err, "remove", "firewall table "+f.table.Name)
}

func (f *firewall) slotChain(index int) *nftables.Chain {
	return &nftables.Chain{Table: f.table, Name: fmt.Sprintf("slot%d", index)}
}

func (f *firewall) slotElement(link, chain string) []nftables.SetElement {
	return []nftables.SetElement{{Key: name16(link), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}}
}

// allow opens networks to one slot.
func (f *firewall) allow(s *Slot, networks []netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := nftables.New()
	if err != nil {
		return noNftables(err)
	}
	chain := c.AddChain(f.slotChain(s.index))
	for _, n := range networks {
		c.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: append(addressIn(offsetDaddr, n), accept()...)})
	}
	if err := c.SetAddElements(f.policies, f.slotElement(s.link(), chain.Name)); err != nil {
		return fault.Wrap(err, "open networks to", "sandbox at "+s.Addr.String())
	}
	return fault.Wrap(c.Flush(), "open networks to", "sandbox at "+s.Addr.String())
}

// revoke undoes allow.
func (f *firewall) revoke(s *Slot) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := nftables.New()
	if err != nil {
		return noNftables(err)
	}
	chain := f.slotChain(s.index)
	if err := c.SetDeleteElements(f.policies, f.slotElement(s.link(), chain.Name)); err != nil {
		return fault.Wrap(err, "close networks to", "sandbox at "+s.Addr.String())
	}
	c.FlushChain(chain)
	c.DelChain(chain)
	return fault.Wrap(c.Flush(), "close networks to", "sandbox at "+s.Addr.String())
}

// Pieces of rules. Register 1 holds what is compared.

func (f *firewall) ownPolicy() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: f.policies.Name, SetID: f.policies.ID, DestRegister: 0, IsDestRegSet: true},
	}
}

// interfaceIs matches the beginning of an interface's name.
func interfaceIs(key expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(prefix)}}
}

func notInterface(key expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte(prefix)}}
}

func established() []expr.Any {
	states := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: states, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func ipv4(is bool) []expr.Any {
	op := expr.CmpOpEq
	if !is {
		op = expr.CmpOpNeq
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: []byte{unix.NFPROTO_IPV4}}}
}

func addressAt(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

// addressIn matches an address of the header against a prefix, in IPv4 only.
func addressIn(offset uint32, p netip.Prefix) []expr.Any {
	mask := make([]byte, 4)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-p.Bits()))
	if p.Bits() == 0 {
		mask = make([]byte, 4)
	}
	return append(ipv4(true), addressAt(offset),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()})
}

func sourceIn(p netip.Prefix) []expr.Any { return addressIn(offsetSaddr, p) }

func destinationIs(a netip.Addr) []expr.Any {
	return addressIn(offsetDaddr, netip.PrefixFrom(a, 32))
}

func destinationIn(s *nftables.Set) []expr.Any {
	return append(ipv4(true), addressAt(offsetDaddr), &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID})
}

func protocolIs(p byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}}}
}

func port53() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offsetDport, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(53)},
	}
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() []expr.Any   { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

func name16(s string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, s)
	return b
}

func addresses(l []netip.Addr) []nftables.SetElement {
	var e []nftables.SetElement
	seen := map[netip.Addr]bool{}
	for _, a := range l {
		if !seen[a] {
			seen[a] = true
			e = append(e, nftables.SetElement{Key: a.AsSlice()})
		}
	}
	return e
}

// intervals makes elements of disjoint prefixes: each is a start and, unless it
// reaches the last address, an end.
func intervals(l []netip.Prefix) []nftables.SetElement {
	var e []nftables.SetElement
	for _, p := range l {
		e = append(e, nftables.SetElement{Key: p.Addr().AsSlice()})
		end := binary.BigEndian.Uint32(p.Addr().AsSlice()) + 1<<(32-p.Bits())
		if end == 0 {
			continue
		}
		key := make([]byte, 4)
		binary.BigEndian.PutUint32(key, end)
		e = append(e, nftables.SetElement{Key: key, IntervalEnd: true})
	}
	return e
}

// passOthers lets the server's interfaces through the chains of other programs that
// drop forwarded packets by default, and returns their names. The rules carry a
// mark, by which removePasses finds them.
func passOthers(name, prefix string) ([]string, error) {
	var passed []string
	err := eachForwardChain(func(c *nftables.Conn, chain *nftables.Chain) {
		for _, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
			c.InsertRule(&nftables.Rule{
				Table: chain.Table, Chain: chain, UserData: mark(name),
				Exprs: append(interfaceIs(key, prefix), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept}),
			})
		}
		passed = append(passed, chain.Table.Name+"/"+chain.Name)
	})
	return passed, err
}

// eachForwardChain calls f for the base chains that drop forwarded IPv4 packets by
// default, and commits what f has asked for.
func eachForwardChain(f func(*nftables.Conn, *nftables.Chain)) error {
	c, err := nftables.New()
	if err != nil {
		return noNftables(err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return noNftables(err)
	}
	for _, chain := range chains {
		forwards := chain.Hooknum != nil && *chain.Hooknum == *nftables.ChainHookForward && chain.Type == nftables.ChainTypeFilter
		drops := chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop
		speaksIPv4 := chain.Table.Family == nftables.TableFamilyIPv4 || chain.Table.Family == nftables.TableFamilyINet
		if forwards && drops && speaksIPv4 {
			f(c, chain)
		}
	}
	return fault.Wrap(c.Flush(), "pass", "other firewalls")
}

// removePasses removes the rules of passOthers, wherever they are.
func removePasses(name string) error {
	c, err := nftables.New()
	if err != nil {
		return noNftables(err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return noNftables(err)
	}
	var errs []error
	for _, chain := range chains {
		if chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			continue // the chain has gone meanwhile
		}
		for _, r := range rules {
			if bytes.Equal(r.UserData, mark(name)) {
				errs = append(errs, c.DelRule(r))
			}
		}
	}
	errs = append(errs, c.Flush())
	return fault.Wrap(errors.Join(errs...), "remove passes through", "other firewalls")
}

// mark is a comment, in nftables' encoding of user data: type 0, length, text, NUL.
func mark(name string) []byte {
	text := "brisk " + name + "\x00"
	return append([]byte{0, byte(len(text))}, text...)
}
