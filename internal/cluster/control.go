package cluster

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// controller is what the control node has more than others.
type controller struct {
	authority *authority
	registry  *registry
	addresses []string // of this machine
	epoch     uint64
	began     time.Time // monotonic
	joins     *bucket
	kick      chan struct{} // the list may have changed

	renew sync.Mutex // one new certificate of our own at a time
}

// A machine that guesses tokens gets no further for guessing faster; this keeps it
// from occupying the control node with it.
const (
	joinBurst    = 20
	joinInterval = 500 * time.Millisecond
)

func (c *Cluster) openControl() (err error) {
	if !ValidName(c.opts.Name) {
		return badName(c.opts.Name)
	}
	k := &controller{began: time.Now(), joins: newBucket(joinBurst, joinInterval), kick: make(chan struct{}, 1)}
	if k.authority, err = openAuthority(c.opts.Dir); err != nil {
		return err
	}
	if k.authority == nil {
		if k.authority, err = makeAuthority(c.opts.Dir); err != nil {
			return err
		}
		c.log.Info("this machine is the control node of a new cluster", "cluster", clusterName(fingerprintOf(k.authority.cert)))
	}
	if k.registry, err = openRegistry(c.opts.Dir, c.clock); err != nil {
		return err
	}
	if _, taken := k.registry.now.Load().Nodes[c.opts.Name]; taken {
		return fault.New(fault.Exists, "a node of the cluster has this machine's name, %s", c.opts.Name).
			WithHint("Give this machine another one with --node.")
	}
	if k.addresses, err = advertised(c.opts.Advertise, c.listener.Addr()); err != nil {
		return err
	}
	if k.epoch, err = k.registry.begin(); err != nil {
		return err
	}
	// The control node's own key lives as long as its process: who has the
	// authority needs nothing else to prove who it is.
	if c.key, err = newKey(); err != nil {
		return err
	}
	c.authority = k.authority.cert
	c.self = identity{cluster: clusterName(fingerprintOf(c.authority)), role: control, name: c.opts.Name}
	c.control = k
	if _, err := c.certificate(); err != nil {
		return err
	}
	c.self.key = fingerprintOf(c.cert.Load().Leaf)
	c.refresh()
	c.mux.HandleFunc("POST "+pathJoin, c.serveJoin)
	c.Handle("POST "+pathBeat, c.serveBeat)
	c.Handle("POST "+pathKeys, c.serveKeys)
	c.Handle("POST "+pathLeave, c.serveLeave)
	return nil
}

// patience is how long a node is alive without a beat: half a beat's time is for
// the way.
func (c *Cluster) patience() time.Duration {
	return c.opts.Beat*time.Duration(c.opts.Misses) + c.opts.Beat/2
}

// refresh makes the list anew.
func (c *Cluster) refresh() {
	k := c.control
	self := Member{
		Name: c.self.name, Address: k.addresses[0], Epoch: k.epoch, Key: c.self.key, Control: true, Alive: true,
		Version: c.opts.Version, Traffic: c.opts.Traffic(),
	}
	c.roster.Store(&roster{made: time.Now(), members: append([]Member{self}, k.registry.members(c.patience(), k.began)...)})
}

// touch makes the list anew and has Changed told.
func (c *Cluster) touch() {
	c.refresh()
	select {
	case c.control.kick <- struct{}{}:
	default:
	}
}

// watch notices who has died, and tells Changed.
func (c *Cluster) watch() {
	tick := time.NewTicker(max(c.opts.Beat/2, time.Millisecond))
	defer tick.Stop()
	var told []Member
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		case <-c.control.kick:
		}
		c.refresh()
		if live := c.Members(); !sameMembers(live, told) {
			c.tellDifference(told, live)
			told = live
			c.opts.Changed(live)
		}
	}
}

// tellDifference logs who came and who went.
func (c *Cluster) tellDifference(before, after []Member) {
	has := func(l []Member, name string) bool { return (&roster{members: l}).find(name) != nil }
	for _, m := range after {
		if !has(before, m.Name) {
			c.log.Info("a member is alive", "node", m.Name, "address", m.Address)
		}
	}
	for _, m := range before {
		if !has(after, m.Name) {
			c.log.Warn("a member is gone", "node", m.Name, "address", m.Address)
		}
	}
}

// TokenOptions say what a token is good for.
type TokenOptions struct {
	Expires  time.Duration // from now; 0 = 1 h
	Reusable bool          // by any number of machines
}

// NewToken makes a token with which a machine can join. Only the control node can.
func (c *Cluster) NewToken(o TokenOptions) (Token, error) {
	k, err := c.controller()
	if err != nil {
		return Token{}, err
	}
	if o.Expires == 0 {
		o.Expires = time.Hour
	}
	if o.Expires < 0 || o.Expires > 365*24*time.Hour {
		return Token{}, fault.New(fault.Invalid, "a token for %v: want at most a year", o.Expires)
	}
	t := newToken(fingerprintOf(c.authority), k.addresses)
	if err := k.registry.addToken(t, c.clock.now().Add(o.Expires).UTC(), o.Reusable); err != nil {
		return Token{}, err
	}
	return t, nil
}

// Remove ends a node's membership: it is refused from now on. Tokens for any number
// of machines are withdrawn with it, and their number is returned. Only the control
// node can.
func (c *Cluster) Remove(name string) (withdrawn int, err error) {
	k, err := c.controller()
	if err != nil {
		return 0, err
	}
	if name == c.self.name {
		return 0, fault.New(fault.Invalid, "%s is the control node: the cluster cannot be without it", name)
	}
	withdrawn, err = k.registry.remove(name)
	if err == nil {
		c.log.Info("a node was removed", "node", name)
		c.touch()
	}
	return withdrawn, err
}

func (c *Cluster) controller() (*controller, error) {
	if c.control != nil {
		return c.control, nil
	}
	where := "on the control node"
	if l := c.roster.Load(); l != nil && len(l.members) > 0 {
		where += ", " + l.members[0].Name
	}
	return nil, fault.New(fault.Invalid, "only the control node does that").WithHint("Run the command %s.", where)
}

// serveJoin is the one answer for strangers.
func (c *Cluster) serveJoin(w http.ResponseWriter, r *http.Request) {
	a, err := c.join(r)
	if err != nil {
		c.log.Warn("a machine was not let in", "from", r.RemoteAddr, "err", err)
		writeProblem(w, err)
		return
	}
	writeMessage(w, http.StatusOK, a)
}

func (c *Cluster) join(r *http.Request) (*joinAnswer, error) {
	k := c.control
	if !k.joins.take() {
		return nil, fault.New(fault.Exhausted, "too many machines ask to join at once").WithHint("Try again in some seconds.")
	}
	var q joinRequest
	if err := decode(r.Body, maxRequest, &q); err != nil {
		return nil, err
	}
	request, err := x509.ParseCertificateRequest(q.Request)
	if err == nil {
		err = request.CheckSignature()
	}
	pub, is := ed25519.PublicKey(nil), false
	if err == nil {
		pub, is = request.PublicKey.(ed25519.PublicKey)
	}
	if err != nil || !is {
		return nil, fault.New(fault.Invalid, "the certificate request is malformed")
	}
	if q.Name == c.self.name {
		return nil, fault.New(fault.Exists, "the control node has the name %s itself", q.Name).WithHint("Give this machine another one with --node.")
	}
	t := Token{Authority: fingerprintOf(c.authority), Secret: [32]byte(q.Secret)}
	if _, err := hex.Decode(t.ID[:], []byte(q.Token)); err != nil {
		return nil, fault.New(fault.Invalid, "the token is malformed")
	}
	id := identity{cluster: c.self.cluster, role: node, name: q.Name}
	leaf, err := k.authority.issue(id, pub, c.clock.now())
	if err != nil {
		return nil, err
	}
	if err := k.registry.admit(t, q.Name, fingerprintOf(leaf)); err != nil {
		return nil, err
	}
	keys, err := c.opts.Keys.Export()
	if err != nil {
		return nil, err
	}
	c.touch()
	c.log.Info("a machine has joined", "node", q.Name, "from", r.RemoteAddr)
	return &joinAnswer{Version: protocol, Certificate: leaf.Raw, Control: k.addresses, Origin: c.opts.Origin, Keys: keys}, nil
}

func (c *Cluster) serveBeat(w http.ResponseWriter, r *http.Request, from string) {
	a, err := c.answerBeat(r, from)
	if err != nil {
		writeProblem(w, err)
		return
	}
	writeMessage(w, http.StatusOK, a)
}

func (c *Cluster) answerBeat(r *http.Request, from string) (*beatAnswer, error) {
	k := c.control
	var q beatRequest
	if err := decode(r.Body, maxRequest, &q); err != nil {
		return nil, err
	}
	if err := k.registry.beat(from, &q); err != nil {
		return nil, err
	}
	c.touch()
	keys, err := c.opts.Keys.Export()
	if err != nil {
		return nil, err
	}
	now := c.clock.now()
	a := &beatAnswer{
		Version: protocol, Time: now.UTC(), Beat: c.opts.Beat.Milliseconds(),
		Members: c.roster.Load().members, Control: k.addresses,
	}
	if keysDigest(keys) != q.Keys {
		a.Keys = keys
	}
	if leaf := r.TLS.PeerCertificates[0]; stale(leaf, now) {
		fresh, err := k.authority.issue(identity{cluster: c.self.cluster, role: node, name: from}, leaf.PublicKey, now)
		if err != nil {
			return nil, err
		}
		a.Certificate = fresh.Raw
	}
	return a, nil
}

func (c *Cluster) serveKeys(w http.ResponseWriter, r *http.Request, _ string) {
	a, err := c.answerKeys(r)
	if err != nil {
		writeProblem(w, err)
		return
	}
	writeMessage(w, http.StatusOK, a)
}

func (c *Cluster) answerKeys(r *http.Request) (*keysAnswer, error) {
	var q keysRequest
	if err := decode(r.Body, maxRequest, &q); err != nil {
		return nil, err
	}
	if err := c.opts.Keys.Make(q.Workspace); err != nil {
		return nil, err
	}
	keys, err := c.opts.Keys.Export()
	if err != nil {
		return nil, err
	}
	return &keysAnswer{Version: protocol, Keys: keys}, nil
}

// serveLeave lets a node go that wants to.
func (c *Cluster) serveLeave(w http.ResponseWriter, _ *http.Request, from string) {
	if _, err := c.control.registry.remove(from); err != nil {
		writeProblem(w, err)
		return
	}
	c.log.Info("a node has left", "node", from)
	c.touch()
	writeMessage(w, http.StatusOK, nothing{})
}

// certificate gives this machine's certificate. The control node makes itself a
// new one when it is time; nodes get theirs with the beats.
func (c *Cluster) certificate() (*tls.Certificate, error) {
	k := c.control
	if k == nil {
		return c.cert.Load(), nil
	}
	k.renew.Lock()
	defer k.renew.Unlock()
	now := c.clock.now()
	if have := c.cert.Load(); have == nil || stale(have.Leaf, now) {
		leaf, err := k.authority.issue(c.self, c.key.Public(), now)
		if err != nil {
			return nil, err
		}
		c.own(leaf)
	}
	return c.cert.Load(), nil
}
