package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// machine is a member that is alive, as long as it is, from one start of its
// server to the next. Its keeper goroutine has the connection.
type machine struct {
	p      *Peers
	member Member
	seed   uint64
	*history
	slots chan struct{} // requests in flight
	wake  chan struct{} // the outbox has something
	ctx   context.Context
	end   context.CancelFunc
	link  atomic.Pointer[link] // nil: not to be asked

	mu     sync.Mutex
	outbox []store.Digest // to be announced
	lost   int64          // announcements that found it full
}

// history is what is known of a member for as long as this process lives.
type history struct {
	latency latency

	reads, bytes, misses, failures, busy, lies atomic.Int64 // as in One
	servedChunks, servedBytes                  atomic.Int64 // to it

	mu       sync.Mutex
	strikes  int       // failures in a row
	struck   time.Time // the last of them
	until    time.Time // not asked before
	lying    bool      // that is why
	lastLies int
	reason   string // of the last failure
}

// link is a connection that works.
type link struct {
	http   *http.ClientConn
	raw    net.Conn
	ctx    context.Context // ends when the connection is given up
	cancel context.CancelFunc
	pause  atomic.Int64 // it is busy until then, by the process's clock
}

// maxOutbox bounds what a member is told late.
const maxOutbox = 32 << 10

// How long a peer is left alone.
const (
	firstPause = 500 * time.Millisecond // after a failure, doubled with each further one
	maxPause   = 30 * time.Second
	forgive    = 2 * time.Minute // after so long a failure is the first again
	firstTerm  = 10 * time.Minute
	maxTerm    = 24 * time.Hour
	dialTime   = 3 * time.Second
	batchTime  = 100 * time.Millisecond // announcements are collected
)

// The ends of one request.
var (
	errAbsent  = errors.New("it does not have the chunk")
	errBusy    = errors.New("it is busy")
	errSkipped = errors.New("it was given up meanwhile")
)

// keep connects, and connects again, until the machine is no member.
func (m *machine) keep() {
	defer m.close()
	for {
		if wait := m.waiting(); wait > 0 {
			select {
			case <-time.After(wait):
				continue
			case <-m.ctx.Done():
				return
			}
		}
		l, err := m.connect()
		if m.ctx.Err() != nil {
			if l != nil {
				l.close()
			}
			return
		}
		if err != nil {
			m.strike(err)
			continue
		}
		m.link.Store(l)
		m.hold(l)
	}
}

// hold is what the keeper does while there is a connection.
func (m *machine) hold(l *link) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-m.ctx.Done():
			m.giveUp(l)
			return
		case <-tick.C:
			if err := l.http.Err(); err != nil {
				m.trip(l, err)
			}
			continue
		case <-m.wake:
		}
		select {
		case <-time.After(batchTime):
		case <-l.ctx.Done():
			m.rouse() // for the next connection
			return
		case <-m.ctx.Done():
			continue
		}
		m.flush(l)
	}
}

func (m *machine) close() {
	if l := m.link.Load(); l != nil {
		m.giveUp(l)
	}
}

// connect makes a connection and finds out whether it is quick.
func (m *machine) connect() (*link, error) {
	ctx, cancel := context.WithTimeout(m.ctx, dialTime)
	defer cancel()
	raw, err := m.p.opts.Dial(ctx, m.member)
	if err != nil {
		return nil, err
	}
	var only http.Protocols
	only.SetHTTP2(true)
	t := &http.Transport{
		Protocols: &only, DisableCompression: true,
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return raw, nil },
		HTTP2:          &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 2 * time.Second, WriteByteTimeout: 2 * time.Second},
	}
	h, err := t.NewClientConn(ctx, "https", "peer:443")
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	l := &link{http: h, raw: raw}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if err := m.ping(ctx, l); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// ping finds out whether the way there and back is quick.
func (m *machine) ping(ctx context.Context, l *link) error {
	ctx, cancel := context.WithTimeout(ctx, m.p.opts.Deadline)
	defer cancel()
	res, err := l.do(ctx, http.MethodGet, pathPing, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	// Any answer will do: one that does not know us yet, or is busy, is there.
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return err
}

func (l *link) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://peer"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return l.http.RoundTrip(req)
}

func (l *link) close() {
	l.cancel()
	_ = l.raw.Close() // first: HTTP/2's own goodbye waits for a peer that may not read
	_ = l.http.Close()
}

// giveUp ends a connection and all that waits for it. The keeper makes another at
// once, unless the pause that it is to make is set before.
func (m *machine) giveUp(l *link) {
	m.link.CompareAndSwap(l, nil)
	l.close()
}

// trip gives up a connection over which a request failed.
func (m *machine) trip(l *link, err error) {
	if m.link.CompareAndSwap(l, nil) { // the first that failed
		m.strike(err)
	}
	l.close()
}

// strike has the peer left alone for a while.
func (m *machine) strike(err error) {
	h := m.history
	h.failures.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.struck) > forgive {
		h.strikes = 0
	}
	h.strikes++
	h.struck = time.Now()
	h.reason = err.Error()
	pause := min(m.p.firstPause<<min(h.strikes-1, 10), maxPause)
	pause = pause*3/4 + rand.N(pause/2) // so that not all machines come back at once
	h.rest(pause)
	level := m.p.log.Debug
	if h.strikes == 1 {
		level = m.p.log.Warn
	}
	level("a peer failed; it is left alone for a while", "peer", m.member.Name, "pause", pause, "strikes", h.strikes, "err", err)
}

// convict has a peer that has lied left alone for long.
func (m *machine) convict(l *link, err error) {
	defer m.giveUp(l)
	h := m.history
	h.lies.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lying && time.Now().Before(h.until) {
		return // for the same, in flight at once
	}
	h.lastLies++
	term := min(firstTerm<<min(2*(h.lastLies-1), 10), maxTerm)
	h.lying, h.reason = true, err.Error()
	h.rest(term)
	m.p.log.Error("a peer gave an answer that is not what was asked for; it is not asked again for long",
		"peer", m.member.Name, "address", m.member.Address, "term", term, "err", err)
}

// rest moves the end of the pause, never to an earlier time. Precondition: mu is held.
func (h *history) rest(d time.Duration) {
	if t := time.Now().Add(d); t.After(h.until) {
		h.until = t
	}
}

// waiting is how long the peer is still left alone.
func (h *history) waiting() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := time.Until(h.until)
	if d <= 0 {
		h.lying = false
	}
	return d
}

// ready gives the connection if the peer may be asked now.
func (m *machine) ready() *link {
	l := m.link.Load()
	if l == nil || time.Duration(l.pause.Load()) > m.p.uptime() {
		return nil
	}
	return l
}

// answer is what a peer said.
type answer struct {
	from    *machine
	link    *link
	data    *buffer  // the chunk, sealed; nil if there is an error
	holders []string // with errAbsent: who has it
	err     error
}

// fetch asks for a chunk. It takes no longer than the peer's deadline, and not
// less because somebody else has answered meanwhile: whether this one answers has
// to be found out, or each reader would wait for it anew.
func (m *machine) fetch(l *link, path string) (a answer) {
	a = answer{from: m, link: l}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	default:
		m.busy.Add(1)
		a.err = errBusy
		return a
	}
	began := time.Now()
	deadline := m.latency.deadline(m.p.least, m.p.opts.Deadline)
	asked, cancel := context.WithTimeout(m.p.ctx, deadline)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	a.data, a.holders, a.err = m.exchange(asked, l, path)
	took := time.Since(began)
	switch {
	case a.err == nil:
		m.latency.add(took)
	case errors.Is(a.err, errAbsent):
		m.misses.Add(1)
	case errors.Is(a.err, errBusy):
		m.busy.Add(1)
		l.pause.Store(int64(m.p.uptime() + 10*time.Millisecond + rand.N(40*time.Millisecond)))
	case l.ctx.Err() != nil, m.p.ctx.Err() != nil:
		a.err = errSkipped
	default:
		if asked.Err() != nil {
			m.latency.add(2 * deadline)
			a.err = fault.New(fault.Timeout, "no answer within %v", deadline)
		}
		m.trip(l, a.err)
	}
	return a
}

// exchange is one request and its answer.
func (m *machine) exchange(ctx context.Context, l *link, path string) (*buffer, []string, error) {
	res, err := l.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, holdersOf(res.Header), errAbsent
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden:
		// The last: its list of members may be older than our membership.
		return nil, nil, errBusy
	default:
		return nil, nil, fault.New(fault.Unavailable, "it answered %s", res.Status)
	}
	n := res.ContentLength
	if n < 1 || n > store.MaxAnswer {
		return nil, nil, fault.New(fault.Unavailable, "it answered with %d bytes", n)
	}
	b := buffers.Get().(*buffer)
	if _, err := io.ReadFull(res.Body, b.mem[:n]); err != nil {
		buffers.Put(b)
		return nil, nil, err
	}
	b.data = b.mem[:n]
	return b, nil, nil
}

// buffer is space for an answer.
type buffer struct {
	mem  [store.MaxAnswer]byte
	data []byte
}

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func holdersOf(h http.Header) []string {
	text := h.Get(headerHolders)
	if text == "" || len(text) > 1024 {
		return nil
	}
	return strings.SplitN(text, ",", len(holders{})+1)
}

// tell has names announced.
func (m *machine) tell(names ...store.Digest) {
	m.mu.Lock()
	n := min(len(names), maxOutbox-len(m.outbox))
	m.outbox = append(m.outbox, names[:n]...)
	m.lost += int64(len(names) - n)
	m.mu.Unlock()
	m.rouse()
}

func (m *machine) rouse() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// flush sends what is in the outbox. What fails is lost: it was a hint.
func (m *machine) flush(l *link) {
	m.mu.Lock()
	names := m.outbox
	m.outbox = nil
	m.mu.Unlock()
	for len(names) > 0 && l.ctx.Err() == nil {
		n := min(len(names), maxAnnounced)
		if err := m.send(l, encodeAnnouncement(names[:n])); err != nil {
			if m.ctx.Err() == nil {
				m.trip(l, err)
			}
			return
		}
		names = names[n:]
	}
}

func (m *machine) send(l *link, announcement []byte) error {
	ctx, cancel := context.WithTimeout(m.ctx, dialTime)
	defer cancel()
	res, err := l.do(ctx, http.MethodPost, pathAnnounce, announcement)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return err
}
