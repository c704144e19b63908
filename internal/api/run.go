package api

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/scheduler"
)

// run answers a container's request: a JSON object, and, if the body is chunked,
// the container's standard input after it.
func (s *Server) run(w http.ResponseWriter, r *http.Request) error {
	// Input and output flow at the same time, and what is left of the input when the
	// container ends is nobody's: the connection cannot serve another request.
	ctl := http.NewResponseController(w)
	if err := ctl.EnableFullDuplex(); err != nil {
		return err
	}
	w.Header().Set("Connection", "close")

	var q scheduler.ContainerRequest
	head := &io.LimitedReader{R: r.Body, N: maxDefinition}
	dec := json.NewDecoder(head)
	if err := dec.Decode(&q); err != nil {
		if head.N == 0 {
			return tooBig(maxDefinition)
		}
		return &fault.Error{Class: fault.Invalid, Op: "read the request", Err: err}
	}
	q.Workspace = r.PathValue("w")

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var stdin *os.File
	if r.ContentLength < 0 {
		in, err := startInput(ctx, cancel, io.MultiReader(dec.Buffered(), r.Body))
		if err != nil {
			return err
		}
		defer func() {
			_ = ctl.SetReadDeadline(time.Now()) // wakes a pump that waits for the client
			in.stop()
		}()
		stdin = in.container
	}

	out := stream{w: w}
	exit, err := s.backend.Functions.RunContainer(ctx, q, stdin, containerStream{&out})
	if err != nil {
		out.fail(err)
		return nil
	}
	_ = out.send(exitFrame{"exit", exit.Code, exit.OOM}, nil)
	return nil
}

// containerStream is the stream as a Sink; a container has no call to be accepted.
type containerStream struct{ *stream }

func (containerStream) Accepted(string) error { return nil }

// input pumps a request's body into a pipe that a container reads.
type input struct {
	container *os.File // the end that is read
	host      *os.File
	done      chan struct{}
}

// stallCheck is how often a pump whose container does not read looks whether the
// client is still there: nothing else would tell it.
const stallCheck = time.Second

// startInput starts the pump. It calls gone when the client breaks off before
// the input's end.
func startInput(ctx context.Context, gone func(), body io.Reader) (*input, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	in := &input{container: r, host: w, done: make(chan struct{})}
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	go func() {
		defer close(in.done)
		defer w.Close()
		skipNewline := true // the one that ends the JSON object's line
		buf := make([]byte, 32<<10)
		for {
			n, err := body.Read(buf)
			p := buf[:n]
			if skipNewline && n > 0 {
				skipNewline = false
				if p[0] == '\n' {
					p = p[1:]
				}
			}
			if !in.write(p, conn) {
				return // the container has closed its input, or has ended
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				gone()
				return
			}
			if hungUp(conn) {
				gone()
				return
			}
		}
	}()
	return in, nil
}

// write hands p to the container; false means that nobody reads any more. While the
// container does not read it watches the client.
func (in *input) write(p []byte, client net.Conn) bool {
	for len(p) > 0 {
		_ = in.host.SetWriteDeadline(time.Now().Add(stallCheck))
		n, err := in.host.Write(p)
		p = p[n:]
		switch {
		case err == nil:
		case !os.IsTimeout(err):
			return false
		case hungUp(client):
			return true // the caller finds out, and cancels
		}
	}
	return true
}

// stop ends the pump. The body's reads must have been woken.
func (in *input) stop() {
	_ = in.container.Close()
	_ = in.host.Close()
	<-in.done
}

// hungUp reports whether the other end of c is closed, whatever it has left unread.
func hungUp(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, _ := unix.Poll(p, 0); n > 0 {
			gone = p[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0
		}
	})
	return gone || err != nil
}
