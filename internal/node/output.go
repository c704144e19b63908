package node

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// output carries what a sandbox writes to its standard output and error to
// whoever is interested at the moment: the call that runs, or, between calls, a
// buffer of the last bytes, from which an instance that dies is explained.
//
// Bytes are handed on under a lock that Drain takes too: when Drain returns, all
// that the sandbox had written before is with the sink. A slow sink makes the
// pipe fill up and the sandbox wait: that is the back-pressure.
type output struct {
	pipes []*pipe
	wg    sync.WaitGroup
}

// Sink gets raw output of one stream ("stdout", "stderr"), from one goroutine at a time.
type Sink func(stream string, p []byte)

type pipe struct {
	stream string
	r, w   *os.File
	mu     *sync.Mutex // one for all pipes of an instance: a sink is called from one goroutine at a time
	out    *output
	shared *sinkState
	buf    []byte
}

// sinkState is guarded by the pipes' common mutex.
type sinkState struct {
	sink Sink
	tail []byte // the last tailSize bytes of both streams
}

// tailSize is enough for a traceback of some 80 frames.
const tailSize = 16 << 10

func newOutput() (*output, error) {
	o := &output{}
	mu, st := &sync.Mutex{}, &sinkState{}
	for _, stream := range []string{"stdout", "stderr"} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			o.Close()
			return nil, fault.Wrap(err, "make a pipe for", stream)
		}
		// Only our end is non-blocking: the flag belongs to each end's own description.
		if err := unix.SetNonblock(fds[0], true); err != nil {
			_ = unix.Close(fds[0])
			_ = unix.Close(fds[1])
			o.Close()
			return nil, fault.Wrap(err, "set up the pipe for", stream)
		}
		_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, 256<<10) // fewer wake-ups; the default serves too
		o.pipes = append(o.pipes, &pipe{
			stream: stream, mu: mu, shared: st, out: o, buf: make([]byte, 32<<10),
			r: os.NewFile(uintptr(fds[0]), stream), w: os.NewFile(uintptr(fds[1]), stream),
		})
	}
	for _, p := range o.pipes {
		o.wg.Add(1)
		go p.pump()
	}
	return o, nil
}

// ends are the sandbox's ends of the pipes; closeEnds drops ours once it has them.
func (o *output) ends() (stdout, stderr *os.File) { return o.pipes[0].w, o.pipes[1].w }

func (o *output) closeEnds() {
	for _, p := range o.pipes {
		_ = p.w.Close()
	}
}

// pump waits until there is something, then hands it on under the lock.
func (p *pipe) pump() {
	defer p.out.wg.Done()
	rc, err := p.r.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.take(int(fd)) // false: wait until there is more
	})
}

// take hands on all that is in the pipe, and reports whether the writers are gone.
func (p *pipe) take(fd int) (ended bool) {
	for {
		n, err := unix.Read(fd, p.buf)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return false
		case err != nil || n == 0:
			return true
		default:
			p.deliver(p.buf[:n])
		}
	}
}

func (p *pipe) deliver(b []byte) {
	if p.shared.sink != nil {
		p.shared.sink(p.stream, b)
	}
	t := append(p.shared.tail, b...)
	if len(t) > 2*tailSize {
		t = append(t[:0], t[len(t)-tailSize:]...)
	}
	p.shared.tail = t
}

// Attach sends what comes from now on to sink; nil: to nobody.
func (o *output) Attach(sink Sink) {
	p := o.pipes[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shared.sink = sink
	p.shared.tail = p.shared.tail[:0]
}

// Drain hands on everything that has been written so far.
func (o *output) Drain() {
	for _, p := range o.pipes {
		rc, err := p.r.SyscallConn()
		if err != nil {
			continue
		}
		_ = rc.Control(func(fd uintptr) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.take(int(fd))
		})
	}
}

// Tail is the end of what came since the last Attach.
func (o *output) Tail() string {
	p := o.pipes[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.shared.tail
	return string(t[max(0, len(t)-tailSize):])
}

// Wait returns when the sandbox has closed its ends and all is handed on.
func (o *output) Wait() { o.wg.Wait() }

// Close stops, whether or not the sandbox is done.
func (o *output) Close() {
	for _, p := range o.pipes {
		_ = p.w.Close()
		_ = p.r.Close()
	}
	o.wg.Wait()
}
