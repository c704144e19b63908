package peer

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Member is another machine of the cluster that is alive.
type Member struct {
	Name    string // unique
	Address string // where it listens
	Epoch   uint64 // another when its server has started again
}

// Options say who this machine is, and how it reaches others.
type Options struct {
	Self    string // this machine's name among the members
	Listens bool   // others reach this machine
	// Dial connects to a member: a *tls.Conn over which HTTP/2 is spoken, with the
	// other side known to be that member.
	Dial func(ctx context.Context, m Member) (net.Conn, error)
	// Serve answers for the machine's own stores, from the cache only;
	// fault.NotFound for what it does not have.
	Serve func(ctx context.Context, workspace string, name store.Digest) (answer []byte, err error)
	Log   *slog.Logger

	Deadline time.Duration // of one answer, at most; 0 = 300 ms
	Parallel int           // requests in flight to one peer, and from one; 0 = 32
	Answers  int           // requests of others that are answered at once; 0 = 64
}

// Peers is this machine's part in the exchange of chunks. It implements store.Peers.
type Peers struct {
	opts       Options
	log        *slog.Logger
	began      time.Time
	firstPause time.Duration // constants, but in tests
	least      time.Duration

	table     atomic.Pointer[table]
	directory *directory
	answering chan struct{}

	mu        sync.Mutex
	closed    bool
	histories map[string]*history
	announced ring
	asking    map[string]int // requests of others that are answered now, by member

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // keepers, fetches and their requests

	fetches, hits, absent, hedges, unwanted, wasted, unasked, given, givenBytes, refused atomic.Int64
}

var _ store.Peers = (*Peers)(nil)

// announcedSize is how many names new owners are told when members change: 8 GiB
// of whole chunks, in 2 MB of memory.
const announcedSize = 64 << 10

// New makes the exchange, without any members.
func New(o Options) *Peers {
	if o.Deadline <= 0 {
		o.Deadline = 300 * time.Millisecond
	}
	if o.Parallel <= 0 {
		o.Parallel = 32
	}
	if o.Answers <= 0 {
		o.Answers = 64
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	p := &Peers{
		opts: o, log: o.Log, began: time.Now(), firstPause: firstPause, least: minDeadline,
		directory: newDirectory(directorySize), answering: make(chan struct{}, o.Answers),
		histories: map[string]*history{}, announced: ring{limit: announcedSize}, asking: map[string]int{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.table.Store(&table{self: seedOf(o.Self), listens: o.Listens})
	return p
}

// uptime is the process's clock.
func (p *Peers) uptime() time.Duration { return time.Since(p.began) }

// SetMembers says who else is alive now.
func (p *Peers) SetMembers(live []Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	before := p.table.Load()
	after := &table{self: before.self, listens: before.listens}
	for _, member := range live {
		if m := before.find(member.Name); m != nil && m.member == member {
			after.machines = append(after.machines, m)
			continue
		}
		if member.Name == p.opts.Self || after.find(member.Name) != nil {
			continue
		}
		m := &machine{
			p: p, member: member, seed: seedOf(member.Name), history: p.historyOf(member.Name),
			slots: make(chan struct{}, p.opts.Parallel), wake: make(chan struct{}, 1),
		}
		m.ctx, m.end = context.WithCancel(p.ctx)
		after.machines = append(after.machines, m)
		p.wg.Go(m.keep)
	}
	p.table.Store(after)
	for _, m := range before.machines {
		if after.find(m.member.Name) != m {
			m.end()
		}
	}
	p.announceAgain(before, after)
}

// historyOf gives what is known of a member. Precondition: mu is held.
func (p *Peers) historyOf(name string) *history {
	h := p.histories[name]
	if h == nil {
		h = &history{}
		p.histories[name] = h
	}
	return h
}

// announceAgain tells owners that are new what they own. Precondition: mu is held.
func (p *Peers) announceAgain(before, after *table) {
	fresh := map[*machine][]store.Digest{}
	for i := range p.announced.names {
		name := &p.announced.names[i]
		old, _ := before.owners(name)
		now, n := after.owners(name)
		for _, m := range now[:n] {
			if m != nil && m != old[0] && m != old[1] {
				fresh[m] = append(fresh[m], *name)
			}
		}
	}
	for m, names := range fresh {
		m.tell(names...)
	}
}

// Announce says that this machine has the chunk now.
func (p *Peers) Announce(_ string, name store.Digest) {
	if !p.opts.Listens {
		return // nobody can come for it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.announced.add(name)
	l, n := p.table.Load().owners(&name)
	for _, m := range l[:n] {
		if m != nil {
			m.tell(name)
		}
	}
}

// Fetch asks other machines for a chunk: see the package comment.
func (p *Peers) Fetch(ctx context.Context, workspace string, name store.Digest, accept func(answer []byte) error) error {
	t := p.table.Load()
	if len(t.machines) == 0 {
		return errNobody
	}
	if !p.enter() {
		return fault.New(fault.Cancelled, "peers are closed")
	}
	defer p.wg.Done()
	p.fetches.Add(1)
	r := &race{p: p, table: t, path: chunkPath(workspace, name), answers: make(chan answer, maxAsked)}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(ctx, 2*p.opts.Deadline)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	r.line(name)
	err := r.run(accept)
	switch {
	case err == nil:
		p.hits.Add(1)
	case ctx.Err() != nil:
		return fault.Wrap(ctx.Err(), "ask peers for", name.Short())
	case fault.Is(err, fault.NotFound):
		p.absent.Add(1)
	}
	return err
}

var errNobody = fault.New(fault.NotFound, "no peer has the chunk")

// enter counts a call that Close waits for.
func (p *Peers) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Add(1)
	return true
}

// Close ends everything that is in flight.
func (p *Peers) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	return nil
}

// maxAsked is how many peers are asked for one chunk: the owners, and who they name.
const maxAsked = 6

// race is one Fetch.
type race struct {
	p       *Peers
	table   *table
	ctx     context.Context
	path    string
	waiting []*machine // to be asked
	asked   []*machine
	flying  int // requests under way
	answers chan answer

	mu   sync.Mutex
	over bool // nobody takes answers any more
}

// line sets up whom to ask: the owners, and, if this machine is one, who has told it.
func (r *race) line(name store.Digest) {
	l, n := r.table.owners(&name)
	for _, m := range l[:n] {
		if m != nil {
			r.waiting = append(r.waiting, m)
			continue
		}
		r.suggest(r.p.directory.find(&name))
	}
}

// suggest puts those who are said to have the chunk at the head of the line, in an
// order of chance, so that the load is shared.
func (r *race) suggest(names []string) {
	var l []*machine
	for _, name := range names {
		if m := r.table.find(name); m != nil {
			l = append(l, m)
		}
	}
	rand.Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] })
	r.waiting = append(l, r.waiting...)
}

// next asks the next in line, if there is one that may be asked.
func (r *race) next() (asked *machine) {
	for len(r.waiting) > 0 && len(r.asked) < maxAsked {
		m := r.waiting[0]
		r.waiting = r.waiting[1:]
		if slices.Contains(r.asked, m) {
			continue
		}
		r.asked = append(r.asked, m)
		l := m.ready()
		if l == nil {
			continue
		}
		r.flying++
		// Close waits for it: it waits for this Fetch already.
		r.p.wg.Go(func() { r.deliver(m.fetch(l, r.path)) })
		return m
	}
	return nil
}

// run asks until an answer is accepted or there is nobody left.
func (r *race) run(accept func([]byte) error) error {
	defer r.abandon()
	first := r.next()
	if first == nil {
		r.p.unasked.Add(1)
		return errNobody
	}
	hedge := time.NewTimer(first.latency.hedge(r.p.opts.Deadline))
	defer hedge.Stop()
	for r.flying > 0 {
		select {
		case <-r.ctx.Done():
			return fault.New(fault.Timeout, "peers did not answer in time")
		case <-hedge.C:
			if m := r.next(); m != nil {
				r.p.hedges.Add(1)
			}
			continue
		case a := <-r.answers:
			r.flying--
			if a.err == nil {
				err := accept(a.data.data)
				size := len(a.data.data)
				buffers.Put(a.data)
				if err == nil {
					a.from.reads.Add(1)
					a.from.bytes.Add(int64(size))
					return nil
				}
				if r.ctx.Err() != nil {
					continue
				}
				a.from.convict(a.link, err)
			}
			if r.suggest(a.holders); r.flying > 0 && len(a.holders) == 0 {
				continue // with whoever is asked beside
			}
			if m := r.next(); m != nil {
				hedge.Reset(m.latency.hedge(r.p.opts.Deadline))
			}
		}
	}
	return errNobody
}

// deliver hands an answer in, or throws it away if it comes too late.
func (r *race) deliver(a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		r.waste(a)
		return
	}
	r.answers <- a // there is room for all
}

// abandon ends it: answers that were not taken are nobody's.
func (r *race) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for {
		select {
		case a := <-r.answers:
			r.waste(a)
		default:
			return
		}
	}
}

// waste counts an answer that was transferred for nothing.
func (r *race) waste(a answer) {
	if a.data == nil {
		return
	}
	r.p.unwanted.Add(1)
	r.p.wasted.Add(int64(len(a.data.data)))
	buffers.Put(a.data)
}
