package channel

import (
	"context"
	"net"
	"os"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Listener is the socket that one instance's runner dials. Only the runner can
// reach it: it lies in the instance's own directory.
type Listener struct {
	l *net.UnixListener
}

// Listen binds path. A path too long for a unix socket (107 bytes) is Invalid.
func Listen(path string) (*Listener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fault.Wrap(err, "listen for the runner on", path)
	}
	// The user inside may be anybody, and only what is in the sandbox sees the directory.
	if err := os.Chmod(path, 0o666); err != nil {
		_ = l.Close()
		return nil, fault.Wrap(err, "open to the runner", path)
	}
	return &Listener{l: l}, nil
}

// Accept waits for the runner and its hello, until ctx ends.
func (l *Listener) Accept(ctx context.Context) (*Conn, Message, error) {
	stop := context.AfterFunc(ctx, func() { _ = l.l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c, err := l.l.Accept()
	if err != nil {
		if ctx.Err() != nil {
			return nil, Message{}, context.Cause(ctx)
		}
		return nil, Message{}, err
	}
	conn := newConn(c)
	deadline, _ := ctx.Deadline()
	hello, err := conn.Receive(deadline)
	if err == nil && hello.Type != "hello" {
		err = fault.New(fault.Corrupt, "runner: its first message is %q, not hello", hello.Type)
	}
	if err != nil {
		_ = conn.Close()
		return nil, Message{}, err
	}
	return conn, hello, nil
}

// Close stops listening and removes the socket.
func (l *Listener) Close() error { return l.l.Close() }
