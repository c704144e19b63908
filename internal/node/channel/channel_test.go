package channel

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

func frame(header string, payload []byte) []byte {
	return append(AppendFrame(nil, []byte(header), len(payload)), payload...)
}

func TestFrameIsLaidOutAsDocumented(t *testing.T) {
	require.Equal(t, []byte{'B', 'R', 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, '{', '}', 'a', 'b', 'c'}, frame("{}", []byte("abc")))
}

func TestReadFrame(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MiB: grows several times
	f, err := ReadFrame(bytes.NewReader(frame(`{"type":"result"}`, big)))
	require.NoError(t, err)
	require.Equal(t, `{"type":"result"}`, string(f.Header))
	require.True(t, bytes.Equal(big, f.Payload))
}

func TestReadFrameRefuses(t *testing.T) {
	good := frame(`{}`, []byte("abc"))
	huge := append([]byte{}, good...)
	copy(huge[8:], []byte{0, 0, 0, 0, 0, 1})
	longHeader := append([]byte{}, good...)
	copy(longHeader[4:], []byte{0xff, 0xff, 0xff, 0xff})
	otherVersion := append([]byte{}, good...)
	otherVersion[2] = 2
	for name, c := range map[string]struct {
		in    []byte
		class fault.Class
	}{
		"truncated prefix":  {good[:7], fault.Corrupt},
		"truncated header":  {good[:17], fault.Corrupt},
		"truncated payload": {good[:20], fault.Corrupt},
		"other version":     {otherVersion, fault.Corrupt},
		"not a frame":       {[]byte("GET / HTTP/1.1\r\n\r\n"), fault.Corrupt},
		"long header":       {longHeader, fault.Corrupt},
		"huge payload":      {huge, fault.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadFrame(bytes.NewReader(c.in))
			require.Equal(t, c.class, fault.ClassOf(err))
		})
	}
	_, err := ReadFrame(bytes.NewReader(nil))
	require.Equal(t, io.EOF, err)
}

func FuzzReadFrame(f *testing.F) {
	f.Add(frame(`{"type":"hello"}`, nil))
	f.Add(frame(`{"type":"result","id":"c-1"}`, []byte("pickle")))
	f.Add([]byte("BR\x01\x00\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ReadFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		if again := frame(string(got.Header), got.Payload); !bytes.HasPrefix(b, again) {
			t.Fatalf("%x reads as %x", b, again)
		}
	})
}

func TestMessagesCarryTheirType(t *testing.T) {
	for want, m := range map[string]interface{ MarshalJSON() ([]byte, error) }{
		`{"type":"park"}`: Park{},
		`{"type":"exit"}`: Exit{},
		`{"type":"call","id":"c-1","deadline_ms":1500}`: Call{ID: "c-1", DeadlineMS: 1500},
	} {
		b, err := m.MarshalJSON()
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
}

// dial plays a runner.
func dial(t *testing.T, path string, frames ...[]byte) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	for _, f := range frames {
		_, err = c.Write(f)
		require.NoError(t, err)
	}
	return c
}

func TestConversation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runner.sock")
	l, err := Listen(path)
	require.NoError(t, err)
	runner := dial(t, path, frame(`{"type":"hello","phase":"restored","pid":7}`, nil))
	c, hello, err := l.Accept(context.Background())
	require.NoError(t, err)
	require.Equal(t, "restored", hello.Phase)
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
	require.True(t, c.Alive())

	payload := bytes.Repeat([]byte("x"), 100_000)
	require.NoError(t, c.Send(Call{ID: "c-1"}, payload, time.Time{}))
	f, err := ReadFrame(runner)
	require.NoError(t, err)
	require.Equal(t, payload, f.Payload)

	_, err = runner.Write(frame(`{"type":"result","id":"c-1","ms":1.5}`, []byte("r")))
	require.NoError(t, err)
	require.False(t, c.Alive(), "a runner with something to say is not idle")
	m, err := c.Receive(time.Time{})
	require.NoError(t, err)
	require.Equal(t, Message{Type: "result", ID: "c-1", MS: 1.5, Payload: []byte("r")}, m)

	require.NoError(t, runner.Close())
	_, err = c.Receive(time.Time{})
	require.Equal(t, io.EOF, err)
	require.False(t, c.Alive())
	require.NoError(t, c.Close())
}

func TestAcceptEndsWithItsContext(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "runner.sock"))
	require.NoError(t, err)
	defer l.Close()
	why := fault.New(fault.Timeout, "too late")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	_, _, err = l.Accept(ctx)
	require.ErrorIs(t, err, why)
}

func TestFirstMessageMustBeHello(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runner.sock")
	l, err := Listen(path)
	require.NoError(t, err)
	defer l.Close()
	dial(t, path, frame(`{"type":"result"}`, nil))
	_, _, err = l.Accept(context.Background())
	require.Equal(t, fault.Corrupt, fault.ClassOf(err))
}

func TestInterrupt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runner.sock")
	l, err := Listen(path)
	require.NoError(t, err)
	defer l.Close()
	dial(t, path, frame(`{"type":"hello"}`, nil))
	c, _, err := l.Accept(context.Background())
	require.NoError(t, err)
	defer c.Close()
	done := make(chan error)
	go func() { _, err := c.Receive(time.Time{}); done <- err }()
	c.Interrupt()
	require.Error(t, <-done)
}
