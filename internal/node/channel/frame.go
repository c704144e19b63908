// Package channel is the node's end of the connection to the runner inside a
// sandbox: frames, messages, and the socket that the runner dials.
//
// The bytes come from hostile code: headers and payloads are bounded before they
// are read, a malformed frame ends the connection, and payloads are opaque.
// docs/format/runner.md describes the protocol.
//
// A Conn is used by one call at a time. Reading blocks on the runner, never the
// other way round: the node reads whenever a call is running.
package channel

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Limits of a frame. A payload is held in memory once.
const (
	MaxHeader  = 1 << 20
	MaxPayload = 1 << 30
	version    = 1
	prefixSize = 16
)

// Frame is one message as it travels: a JSON header and opaque bytes.
type Frame struct {
	Header  []byte
	Payload []byte
}

// ReadFrame reads one frame. io.EOF means that the peer closed between frames;
// anything malformed is of class Corrupt.
func ReadFrame(r io.Reader) (Frame, error) {
	var p [prefixSize]byte
	if _, err := io.ReadFull(r, p[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			return Frame{}, fault.New(fault.Corrupt, "runner: a frame ended within its prefix")
		}
		return Frame{}, err
	}
	if p[0] != 'B' || p[1] != 'R' || p[2] != version || p[3] != 0 {
		return Frame{}, fault.New(fault.Corrupt, "runner: not a frame of version %d: % x", version, p[:4])
	}
	h, n := binary.LittleEndian.Uint32(p[4:]), binary.LittleEndian.Uint64(p[8:])
	if h > MaxHeader {
		return Frame{}, fault.New(fault.Corrupt, "runner: a header of %d bytes; at most %d are allowed", h, MaxHeader)
	}
	if n > MaxPayload {
		return Frame{}, fault.New(fault.Exhausted, "a payload of %d bytes; at most %d are allowed", n, MaxPayload)
	}
	f := Frame{Header: make([]byte, h)}
	if _, err := io.ReadFull(r, f.Header); err != nil {
		return Frame{}, short(err)
	}
	var err error
	if f.Payload, err = readPayload(r, int64(n)); err != nil {
		return Frame{}, short(err)
	}
	return f, nil
}

// readPayload grows its buffer as bytes arrive, so that a length alone costs no memory.
func readPayload(r io.Reader, n int64) ([]byte, error) {
	const step = 4 << 20
	b := make([]byte, min(n, step))
	for have := int64(0); ; {
		if _, err := io.ReadFull(r, b[have:]); err != nil {
			return nil, err
		}
		if have = int64(len(b)); have == n {
			return b, nil
		}
		next := make([]byte, min(n, 2*have))
		copy(next, b)
		b = next
	}
}

func short(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fault.New(fault.Corrupt, "runner: the connection ended within a frame")
	}
	return err
}

// AppendFrame encodes prefix and header of a frame whose payload has n bytes.
func AppendFrame(b, header []byte, n int) []byte {
	b = append(b, 'B', 'R', version, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(header)))
	b = binary.LittleEndian.AppendUint64(b, uint64(n))
	return append(b, header...)
}

// Conn is one connection of a runner.
type Conn struct {
	c           net.Conn
	r           *bufio.Reader
	w           []byte
	interrupted atomic.Bool // set before the deadlines, so that none set later hides it
}

func newConn(c net.Conn) *Conn { return &Conn{c: c, r: bufio.NewReaderSize(c, 64<<10)} }

// Send writes one message; payload may be nil. It returns when the kernel has
// all of it, or at the deadline (zero: none).
func (c *Conn) Send(m any, payload []byte, deadline time.Time) error {
	h, err := json.Marshal(m)
	if err != nil {
		return fault.Wrap(err, "encode", "message")
	}
	c.w = AppendFrame(c.w[:0], h, len(payload))
	if err := c.until(c.c.SetWriteDeadline, deadline); err != nil {
		return err
	}
	if len(payload) < 32<<10 { // one system call; a larger payload is not copied
		c.w = append(c.w, payload...)
		_, err = c.c.Write(c.w)
		return err
	}
	_, err = (&net.Buffers{c.w, payload}).WriteTo(c.c)
	return err
}

// Receive reads the next message of the runner.
func (c *Conn) Receive(deadline time.Time) (Message, error) {
	if err := c.until(c.c.SetReadDeadline, deadline); err != nil {
		return Message{}, err
	}
	f, err := ReadFrame(c.r)
	if err != nil {
		return Message{}, err
	}
	var m Message
	if err := json.Unmarshal(f.Header, &m); err != nil {
		return Message{}, fault.New(fault.Corrupt, "runner: a header that is not JSON: %v", err)
	}
	m.Payload = f.Payload
	return m, nil
}

// until sets a deadline, unless the connection has been interrupted.
func (c *Conn) until(set func(time.Time) error, deadline time.Time) error {
	if err := set(deadline); err != nil {
		return err
	}
	if c.interrupted.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// Interrupt makes every Receive and Send, in progress or to come, fail with
// os.ErrDeadlineExceeded.
func (c *Conn) Interrupt() {
	c.interrupted.Store(true)
	_ = c.c.SetDeadline(time.Unix(1, 0))
}

// Interrupted reports whether Interrupt has been called.
func (c *Conn) Interrupted() bool { return c.interrupted.Load() }

// Close ends the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Alive reports whether the runner still holds its end open, without waiting.
// Between calls a runner sends nothing, so bytes there mean a runner gone wrong.
func (c *Conn) Alive() bool {
	sc, ok := c.c.(*net.UnixConn)
	if !ok || c.r.Buffered() > 0 {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	_ = rc.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		alive = err == unix.EAGAIN
	})
	return alive
}
