package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"brisk.dev/brisk/internal/fault"
)

// Options say where a pool works. Only Dir is required.
type Options struct {
	Dir  string       // the namespaces are bound to files in it; must not be used for anything else
	Name string       // 1 to 4 of a-z and 0-9, different for each server on the machine; default: from Dir
	Size int          // namespaces in stock; default 4
	Log  *slog.Logger // nil: nothing is logged

	// Range is the network of the sandboxes, at most a /24; default: one of the
	// /16 in 100.96.0.0/11 that the host has no route to.
	Range netip.Prefix
}

// Policy says what a sandbox may reach besides the public internet.
type Policy struct {
	// Allow opens networks that are closed by default. IPv4 only.
	Allow []netip.Prefix
}

// Pool makes namespaces.
type Pool struct {
	options   Options
	mtu       int
	addresses netip.Prefix
	resolvers resolvers
	firewall  *firewall
	relay     *relay

	stock    chan *Slot    // ready for use
	failed   chan error    // to whoever waits while none can be made
	returned chan struct{} // something is in mu.back
	cancel   context.CancelFunc
	done     chan struct{}

	mu struct {
		sync.Mutex
		next   int
		used   map[int]bool // indices that exist on the machine
		out    map[*Slot]bool
		back   []*Slot
		closed bool
	}
}

// A failed creation is tried again after this; who waits for a namespace hears of
// the failure at once.
const retryAfter = time.Second

var validName = regexp.MustCompile(`^[a-z0-9]{1,4}$`)

// Open removes what an earlier server of the same name left, sets up the firewall,
// and begins to make namespaces.
func Open(ctx context.Context, o Options) (_ *Pool, err error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fault.New(fault.Invalid, "network directory %q is not absolute", o.Dir)
	}
	sum := sha256.Sum256([]byte(o.Dir))
	if o.Name == "" {
		o.Name = hex.EncodeToString(sum[:2])
	}
	if !validName.MatchString(o.Name) {
		return nil, fault.New(fault.Invalid, "network name %q: want 1 to 4 of a-z and 0-9", o.Name)
	}
	if o.Size <= 0 {
		o.Size = 4
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "make", "network directory")
	}
	p := &Pool{
		options: o, stock: make(chan *Slot, o.Size), failed: make(chan error),
		returned: make(chan struct{}, 1), done: make(chan struct{}),
	}
	p.mu.used, p.mu.out = map[int]bool{}, map[*Slot]bool{}
	if err := errors.Join(removeStale(p.linkPrefix(), o.Dir), removePasses(o.Name), dropTable(o.Name), removeLoopback(o.Name)); err != nil {
		return nil, err
	}
	if p.addresses = o.Range; !p.addresses.IsValid() {
		if p.addresses, err = freeRange(sum[0]); err != nil {
			return nil, err
		}
	}
	if !p.addresses.Addr().Is4() || p.addresses.Bits() > 24 || p.addresses != p.addresses.Masked() {
		return nil, fault.New(fault.Invalid, "network range %s: want an IPv4 network of at least a /24", p.addresses)
	}
	p.mtu = uplinkMTU()
	defer func() {
		if err != nil {
			err = errors.Join(err, p.unwind())
		}
	}()
	if err := p.openResolvers(); err != nil {
		return nil, err
	}
	var relayed netip.Addr
	if p.relay != nil {
		relayed = p.relay.addr
	}
	if p.firewall, err = openFirewall(o.Name, p.linkPrefix(), p.addresses, p.resolvers.servers, relayed); err != nil {
		return nil, err
	}
	passed, err := passOthers(o.Name, p.linkPrefix())
	if err != nil {
		return nil, err
	}
	if len(passed) > 0 {
		o.Log.Info("another firewall drops what is forwarded; its chains let sandboxes pass now", "chains", strings.Join(passed, " "))
	}
	if err := p.enableForwarding(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.work(run)
	return p, nil
}

// openResolvers finds the host's resolvers, and starts a relay if a sandbox cannot
// reach any of them. The relay's address is in the range's last subnet.
func (p *Pool) openResolvers() (err error) {
	if p.resolvers, err = readResolvers("/"); err != nil {
		return err
	}
	if len(p.resolvers.servers) > 0 || len(p.resolvers.local) == 0 {
		return nil
	}
	addr, _ := subnet(p.addresses, slots(p.addresses))
	if p.relay, err = startRelay(p.options.Name, addr, p.resolvers.local[0]); err != nil {
		return err
	}
	p.resolvers.servers = []netip.Addr{addr}
	return nil
}

// enableForwarding makes the host a router, which it stays: others may rely on it.
func (p *Pool) enableForwarding() error {
	const file = "/proc/sys/net/ipv4/ip_forward"
	b, err := os.ReadFile(file)
	if err == nil && strings.TrimSpace(string(b)) != "1" {
		if err = os.WriteFile(file, []byte("1"), 0); err == nil {
			p.options.Log.Info("net.ipv4.ip_forward is 1 now; it stays so")
		}
	}
	if err != nil {
		return fault.New(fault.Machine, "enable forwarding: %w", err).WithHint("Run sysctl -w net.ipv4.ip_forward=1.")
	}
	return nil
}

// uplinkMTU is the MTU of the default route's interface, which sandboxes must not
// exceed; 1500 if there is none.
func uplinkMTU() int {
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return 1500
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil && l.Attrs().MTU > 0 {
			return min(l.Attrs().MTU, 1500)
		}
	}
	return 1500
}

func (p *Pool) linkPrefix() string { return "brisk" + p.options.Name + "-" }

// Get gives a namespace with a policy in force. Its Release is owed.
func (p *Pool) Get(ctx context.Context, policy Policy) (*Slot, error) {
	for _, n := range policy.Allow {
		if !n.IsValid() || !n.Addr().Is4() {
			return nil, fault.New(fault.Invalid, "network %s cannot be opened to a sandbox: only IPv4 can", n)
		}
	}
	var s *Slot
	select {
	case s = <-p.stock: // even if ctx has ended
	default:
		select {
		case s = <-p.stock:
		case err := <-p.failed:
			return nil, err
		case <-p.done:
			return nil, fault.New(fault.Unavailable, "the network is closed")
		case <-ctx.Done():
			return nil, fault.Wrap(ctx.Err(), "wait for", "a network namespace")
		}
	}
	p.mu.Lock()
	closed := p.mu.closed
	p.mu.out[s] = true
	p.mu.Unlock()
	if closed {
		s.Release()
		return nil, fault.New(fault.Unavailable, "the network is closed")
	}
	if len(policy.Allow) > 0 {
		if err := p.firewall.allow(s, policy.Allow); err != nil {
			s.Release()
			return nil, err
		}
		s.allowed = true
	}
	return s, nil
}

func (p *Pool) release(s *Slot) {
	p.mu.Lock()
	out := p.mu.out[s]
	if out {
		delete(p.mu.out, s)
		p.mu.back = append(p.mu.back, s)
	}
	p.mu.Unlock()
	if out {
		select {
		case p.returned <- struct{}{}:
		default: // the worker knows already
		}
	}
}

// work makes namespaces and removes returned ones, until ctx ends.
func (p *Pool) work(ctx context.Context) {
	defer close(p.done)
	var ready *Slot // made, and not yet in stock
	var failure error
	for {
		p.removeReturned()
		if ready == nil && failure == nil {
			if s := p.newSlot(); s != nil {
				if failure = s.make(); failure == nil {
					ready = s
				} else {
					p.options.Log.Error("a network namespace could not be made", "error", failure)
					p.freeIndex(s)
				}
			} else {
				failure = fault.New(fault.Exhausted, "all %d network addresses of sandboxes are in use", slots(p.addresses))
			}
		}
		var stock chan *Slot
		var failed chan error
		var again <-chan time.Time
		if ready != nil {
			stock = p.stock
		} else {
			failed = p.failed
			again = time.After(retryAfter)
		}
		select {
		case stock <- ready:
			ready = nil
		case failed <- failure:
			failure = nil
		case <-again:
			failure = nil
		case <-p.returned:
			failure = nil
		case <-ctx.Done():
			if ready != nil {
				p.discard(ready)
			}
			return
		}
	}
}

// newSlot takes the next index that is not in use, in turn, so that an address
// comes again as late as possible; nil if all are in use.
func (p *Pool) newSlot() *Slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := slots(p.addresses)
	for range n {
		i := p.mu.next
		p.mu.next = (i + 1) % n
		if p.mu.used[i] {
			continue
		}
		p.mu.used[i] = true
		s := &Slot{
			Path: filepath.Join(p.options.Dir, strconv.Itoa(i)), Resolvers: p.resolvers.servers,
			pool: p, index: i, resolv: p.resolvers.conf(),
		}
		s.gateway, s.Addr = subnet(p.addresses, i)
		return s
	}
	return nil
}

func (p *Pool) freeIndex(s *Slot) {
	p.mu.Lock()
	delete(p.mu.used, s.index)
	p.mu.Unlock()
}

func (p *Pool) removeReturned() {
	p.mu.Lock()
	back := p.mu.back
	p.mu.back = nil
	p.mu.Unlock()
	for _, s := range back {
		p.discard(s)
	}
}

// discard removes a slot; an index whose remains stay is not used again.
func (p *Pool) discard(s *Slot) {
	err := s.remove()
	if s.allowed {
		err = errors.Join(err, p.firewall.revoke(s))
	}
	if err != nil {
		p.options.Log.Error("a network namespace could not be removed", "namespace", s.Path, "error", err)
		return
	}
	p.freeIndex(s)
}

// Close removes all namespaces, also those that were not released, and all that
// Open set up. ctx bounds the wait for a removal that is going on.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	p.cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "close", "network")
	}
	p.mu.Lock()
	for s := range p.mu.out {
		delete(p.mu.out, s)
		p.mu.back = append(p.mu.back, s)
	}
	p.mu.Unlock()
	p.removeReturned()
	for {
		select {
		case s := <-p.stock:
			p.discard(s)
			continue
		default:
		}
		break
	}
	return p.unwind()
}

// unwind removes what is not a slot's.
func (p *Pool) unwind() error {
	errs := []error{removePasses(p.options.Name)}
	if p.firewall != nil {
		errs = append(errs, p.firewall.close())
	}
	if p.relay != nil {
		errs = append(errs, p.relay.close())
		p.relay = nil
	}
	return errors.Join(errs...)
}
