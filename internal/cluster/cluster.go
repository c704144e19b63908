package cluster

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Options say which machine this is. Dir is needed; on the control node Name and
// Listen too.
type Options struct {
	Dir       string // of the cluster's state
	Name      string // of this machine, if it is the control node; a node has the one that it joined with
	Listen    string // host:port, either may be empty; "" = nobody reaches this machine
	Advertise string // host or host:port where others reach it; "" = what Listen amounts to
	Origin    string // of the store, for those who join; what it means is theirs to know
	Version   string // of this Brisk
	Keys      Keys   // nil = there are none
	Log       *slog.Logger

	// Traffic is asked at every beat; may be nil.
	Traffic func() Traffic
	// Changed is told the members that are alive and can be reached, without this
	// machine, each time they are others. May be nil.
	Changed func(live []Member)

	Beat    time.Duration // between two beats; 0 = 2 s. The control node's counts for all
	Misses  int           // beats until a node is dead; 0 = 3
	ListFor time.Duration // how long a list is in force without a beat; 0 = 1 h
}

func (o *Options) ensureDefaults() {
	if o.Beat <= 0 {
		o.Beat = 2 * time.Second
	}
	if o.Misses <= 0 {
		o.Misses = 3
	}
	if o.ListFor <= 0 {
		o.ListFor = time.Hour
	}
	if o.Keys == nil {
		o.Keys = noKeys{}
	}
	if o.Traffic == nil {
		o.Traffic = func() Traffic { return Traffic{} }
	}
	if o.Changed == nil {
		o.Changed = func([]Member) {}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
}

// Cluster is this machine's part in a cluster. All methods are safe for
// concurrent use; Handle comes before Start.
type Cluster struct {
	opts      Options
	log       *slog.Logger
	clock     *clock
	authority *x509.Certificate
	self      identity
	key       ed25519.PrivateKey

	control *controller // nil on a node
	member  *membership // nil on the control node

	cert   atomic.Pointer[tls.Certificate]
	roster atomic.Pointer[roster] // nil: nobody is known

	listener  net.Listener  // nil if nobody reaches us
	handshake time.Duration // that strangers may take
	mux       *http.ServeMux
	http      *http.Server

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	busy   struct { // requests in progress
		sync.Mutex
		closed bool
		sync.WaitGroup
	}
}

// Open takes part in the cluster of o.Dir: as a node, if the machine has joined
// one, else as the control node, for which a cluster is made if there is none. It
// listens, if it is to, but answers nobody before Start.
func Open(ctx context.Context, o Options) (_ *Cluster, err error) {
	o.ensureDefaults()
	if err := prepare(o.Dir); err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, log: o.Log, clock: newClock(time.Now()), mux: http.NewServeMux(), handshake: handshakeTime}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	file, joined, err := readMember(o.Dir)
	if err != nil {
		return nil, err
	}
	if !joined && o.Listen == "" {
		return nil, fault.New(fault.Invalid, "a control node has to listen").WithHint("Say where with --listen.")
	}
	if o.Listen != "" {
		if c.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", o.Listen); err != nil {
			return nil, &fault.Error{Class: fault.Machine, Op: "listen at", Object: o.Listen, Err: err,
				Hint: "Name another address with --listen HOST:PORT."}
		}
	}
	if joined {
		err = c.openMember(file)
	} else {
		err = c.openControl()
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Start begins to answer, and to beat.
func (c *Cluster) Start() {
	if c.listener != nil {
		var only http.Protocols
		only.SetHTTP2(true)
		c.http = &http.Server{
			Handler: http.HandlerFunc(c.serve), Protocols: &only,
			ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
			IdleTimeout:    10 * time.Minute,
			MaxHeaderBytes: 16 << 10,
			HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: 128, SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
			ErrorLog:       slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
			BaseContext:    func(net.Listener) context.Context { return c.ctx },
		}
		g := newGate(c.listener, c.serverConfig(), c.handshake, c.log)
		c.wg.Go(func() {
			_ = c.http.Serve(g) // ends with Close
			_ = g.Close()
		})
	}
	if c.control != nil {
		c.wg.Go(c.watch)
	} else {
		c.wg.Go(c.beat)
	}
}

// Close stops taking part, and waits for whatever was in progress.
func (c *Cluster) Close() error {
	c.cancel()
	if c.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = c.http.Shutdown(ctx)
		cancel()
		_ = c.http.Close()
	}
	if c.listener != nil {
		_ = c.listener.Close()
	}
	c.busy.Lock()
	c.busy.closed = true
	c.busy.Unlock()
	c.busy.Wait()
	c.wg.Wait()
	if c.member != nil {
		c.member.hangUp()
	}
	return nil
}

// Self is this machine's name in the cluster.
func (c *Cluster) Self() string { return c.self.name }

// Addr is where this machine listens; nil if it does not.
func (c *Cluster) Addr() net.Addr {
	if c.listener == nil {
		return nil
	}
	return c.listener.Addr()
}

// Status is what a machine knows about its cluster.
type Status struct {
	Cluster string   `json:"cluster"`
	Self    string   `json:"self"`
	Control bool     `json:"control"`           // whether this machine is the control node
	Members []Member `json:"members"`           // the control node first
	Age     int64    `json:"age_ms"`            // of the list; -1 = there is none
	Trouble string   `json:"trouble,omitempty"` // why the control node does not answer
}

// Status gives the members as this machine knows them.
func (c *Cluster) Status() Status {
	s := Status{Cluster: c.self.cluster, Self: c.self.name, Control: c.control != nil, Age: -1}
	if c.control != nil {
		c.refresh()
	}
	if r := c.roster.Load(); r != nil {
		s.Members, s.Age = r.members, time.Since(r.made).Milliseconds()
	}
	if c.member != nil {
		if t := c.member.trouble.Load(); t != nil {
			s.Trouble = *t
		}
	}
	return s
}

// Members gives those that are alive and can be reached, without this machine.
func (c *Cluster) Members() []Member { return c.roster.Load().live(c.self.name) }

// Dial connects to a member, on whose port HTTP/2 is spoken.
func (c *Cluster) Dial(ctx context.Context, name string) (*tls.Conn, error) {
	m := c.roster.Load().find(name)
	if m == nil || m.Address == "" {
		return nil, noNode(name)
	}
	want := *m
	conn, err := dialAny(ctx, []string{want.Address}, clientConfig(c.certificate, func(chain []*x509.Certificate) error {
		id, err := identify(c.authority, chain, c.clock.now())
		if err != nil {
			return err
		}
		if id.name != want.Name || id.key != want.Key {
			return fault.New(fault.Invalid, "there is %s and not %s", id.name, want.Name)
		}
		return nil
	}))
	return conn, err
}

// EnsureKeys makes sure that this machine has a workspace's keys, made if nobody has any.
func (c *Cluster) EnsureKeys(ctx context.Context, workspace string) error {
	if c.control != nil {
		return c.opts.Keys.Make(workspace)
	}
	var a keysAnswer
	if err := c.member.ask(ctx, pathKeys, keysRequest{Version: protocol, Workspace: workspace}, &a); err != nil {
		return fault.Wrap(err, "get keys of workspace", workspace)
	}
	return c.opts.Keys.Import(a.Keys)
}

// own makes a certificate the one that this machine shows.
func (c *Cluster) own(leaf *x509.Certificate) {
	c.cert.Store(pair(leaf, c.authority, c.key))
}

func newKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return key, err
}
