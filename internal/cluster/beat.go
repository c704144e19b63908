package cluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// membership is what a node has that the control node has not: a line to it.
type membership struct {
	dir         string
	config      *tls.Config
	incarnation string
	trouble     atomic.Pointer[string] // why the last beat failed; nil: it did not

	mu   sync.Mutex // held over connecting, not over a request
	file memberFile
	line *line // nil: none
}

// refusedPause is the time between beats of a node that was removed.
const refusedPause = 30 * time.Second

func (c *Cluster) openMember(file *memberFile) (err error) {
	if c.authority, err = x509.ParseCertificate(file.Authority); err == nil {
		var leaf *x509.Certificate
		if leaf, err = x509.ParseCertificate(file.Certificate); err == nil {
			if c.self, err = identify(c.authority, []*x509.Certificate{leaf}, time.Time{}); err == nil {
				if c.key, err = readKey(c.opts.Dir); err != nil {
					return err
				}
				c.own(leaf)
			}
		}
	}
	if err != nil {
		return &fault.Error{Class: fault.Corrupt, Op: "read", Object: memberPath(c.opts.Dir), Err: err,
			Hint: "Join again: `brisk node leave`, then `brisk node join` with a new token."}
	}
	if c.opts.Advertise != "" && c.listener != nil {
		if _, err := advertised(c.opts.Advertise, c.listener.Addr()); err != nil {
			return err
		}
	}
	c.member = &membership{dir: c.opts.Dir, file: *file, incarnation: rand.Text()}
	c.member.config = clientConfig(c.certificate, func(chain []*x509.Certificate) error {
		return verifyControl(c.authority, chain)
	})
	return nil
}

// verifyControl accepts the control node of an authority. Its dates do not count:
// it has the authority's key.
func verifyControl(authority *x509.Certificate, chain []*x509.Certificate) error {
	id, err := identify(authority, chain, time.Time{})
	if err != nil {
		return err
	}
	if id.role != control {
		return fault.New(fault.Invalid, "there is the node %s and not the control node", id.name)
	}
	return nil
}

// beat is the node's heart.
func (c *Cluster) beat() {
	var told []Member
	tell := func() {
		list := c.roster.Load()
		if list != nil && time.Since(list.made) > c.opts.ListFor {
			c.log.Warn("the control node has been silent for too long: this machine no longer knows who is a member", "silence", c.opts.ListFor)
			c.roster.Store(nil)
			list = nil
		}
		if live := list.live(c.self.name); !sameMembers(live, told) {
			c.tellDifference(told, live)
			told = live
			c.opts.Changed(live)
		}
	}
	every := c.opts.Beat
	silent := false
	for {
		began := time.Now()
		pause, err := c.beatOnce(every)
		switch {
		case c.ctx.Err() != nil:
			return
		case err == nil:
			if silent {
				c.log.Info("the control node answers again")
			}
			silent, every = false, pause
			c.member.trouble.Store(nil)
		case isRefusal(err):
			if !silent {
				c.log.Error("this machine is no member of the cluster any more", "err", err, "hint", fault.HintOf(err))
			}
			silent, pause = true, refusedPause
			c.member.complain(err)
			c.roster.Store(nil)
		default:
			if !silent {
				c.log.Warn("the control node does not answer; the members last known stay for a while", "err", err, "hint", fault.HintOf(err))
			}
			silent, pause = true, every
			c.member.complain(err)
		}
		tell()
		select {
		case <-time.After(max(pause-time.Since(began), 0)):
		case <-c.ctx.Done():
			return
		}
	}
}

// beatOnce sends a beat and takes in the answer. pause is the time to the next one.
func (c *Cluster) beatOnce(every time.Duration) (pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, max(every, time.Second))
	defer cancel()
	m := c.member
	keys, err := c.opts.Keys.Export()
	if err != nil {
		return 0, err
	}
	q := &beatRequest{
		Version: protocol, Incarnation: m.incarnation, Brisk: c.opts.Version,
		Keys: keysDigest(keys), Traffic: c.opts.Traffic(),
	}
	var a beatAnswer
	err = m.exchange(ctx, func(l *line) (string, any) {
		q.Address = c.address(l.raw)
		return pathBeat, q
	}, &a)
	if err != nil {
		return 0, err
	}
	c.clock.set(a.Time)
	if len(a.Keys) > 0 {
		if err := c.opts.Keys.Import(a.Keys); err != nil {
			return 0, err
		}
	}
	if err := c.takeOver(&a); err != nil {
		return 0, err
	}
	c.roster.Store(&roster{made: time.Now(), members: a.Members})
	return time.Duration(a.Beat) * time.Millisecond, nil
}

// takeOver keeps what is new in an answer and has to survive.
func (c *Cluster) takeOver(a *beatAnswer) error {
	m := c.member
	m.mu.Lock()
	file := m.file
	m.mu.Unlock()
	changed := false
	var fresh *x509.Certificate
	if len(a.Control) > 0 && !slices.Equal(a.Control, file.Control) {
		file.Control, changed = a.Control, true
	}
	if len(a.Certificate) > 0 {
		leaf, err := x509.ParseCertificate(a.Certificate)
		if err != nil {
			return &fault.Error{Class: fault.Invalid, Op: "read", Object: "certificate from the control node", Err: err}
		}
		id, err := identify(c.authority, []*x509.Certificate{leaf}, time.Time{})
		if err != nil {
			return err
		}
		if id != c.self {
			return fault.New(fault.Invalid, "the control node sent a certificate for %s", id.uri())
		}
		fresh, file.Certificate, changed = leaf, leaf.Raw, true
	}
	if !changed {
		return nil
	}
	if err := publishJSON(memberPath(m.dir), file); err != nil {
		return err
	}
	m.mu.Lock()
	m.file = file
	m.mu.Unlock()
	if fresh != nil {
		c.own(fresh)
		m.hangUp() // the next beat shows it
	}
	return nil
}

// address is where others reach this machine: by the address that the control
// node reaches it at, unless it is told another.
func (c *Cluster) address(toControl net.Conn) string {
	if c.listener == nil {
		return ""
	}
	if tcp, is := c.listener.Addr().(*net.TCPAddr); c.opts.Advertise == "" && is && tcp.IP.IsUnspecified() {
		return facing(toControl, c.listener.Addr())
	}
	l, err := advertised(c.opts.Advertise, c.listener.Addr())
	if err != nil { // checked at opening
		return ""
	}
	return l[0]
}

// ask sends one message to the control node.
func (m *membership) ask(ctx context.Context, path string, q any, a message) error {
	return m.exchange(ctx, func(*line) (string, any) { return path, q }, a)
}

// exchange sends what compose makes for the line that there is; a line that fails
// is given up, and the next exchange connects anew.
func (m *membership) exchange(ctx context.Context, compose func(l *line) (path string, q any), a message) error {
	l, err := m.connect(ctx)
	if err != nil {
		return err
	}
	path, q := compose(l)
	err = l.exchange(ctx, path, q, a)
	if err != nil && !isRefusal(err) {
		m.mu.Lock()
		if m.line == l {
			m.line = nil
		}
		m.mu.Unlock()
		l.close()
	}
	return err
}

func (m *membership) connect(ctx context.Context) (*line, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.line != nil && m.line.http.Err() == nil {
		return m.line, nil
	}
	if m.line != nil {
		m.line.close()
		m.line = nil
	}
	l, err := openLine(ctx, m.file.Control, m.config)
	if err != nil {
		return nil, err
	}
	m.line = l
	return l, nil
}

// complain keeps why the control node does not answer as it should.
func (m *membership) complain(err error) {
	text := err.Error()
	m.trouble.Store(&text)
}

// hangUp ends the line.
func (m *membership) hangUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.line != nil {
		m.line.close()
		m.line = nil
	}
}
