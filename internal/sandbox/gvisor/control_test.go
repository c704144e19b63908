package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// serve plays a sentry: answer gets each call, and the descriptors that came with it.
func serve(t *testing.T, answer func(method string, arg json.RawMessage, fds []int) string) string {
	t.Helper()
	// Longer than the address of a socket can be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join("/proc/self/fd", itoa(int(d.Fd())), "s")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go one(c, answer)
		}
	}()
	return filepath.Join(dir, "s")
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func one(c *net.UnixConn, answer func(string, json.RawMessage, []int) string) {
	defer func() { _ = c.Close() }()
	for {
		first, rights := make([]byte, 1), make([]byte, 256)
		n, m, _, _, err := c.ReadMsgUnix(first, rights)
		if err != nil || n != 1 {
			return
		}
		var fds []int
		if messages, err := unix.ParseSocketControlMessage(rights[:m]); err == nil {
			for _, x := range messages {
				if got, err := unix.ParseUnixRights(&x); err == nil {
					fds = append(fds, got...)
				}
			}
		}
		var call struct {
			Method string
			Arg    json.RawMessage
		}
		if json.NewDecoder(io.MultiReader(strings.NewReader(string(first)), c)).Decode(&call) != nil {
			return
		}
		a := answer(call.Method, call.Arg, fds)
		if a == "" {
			return
		}
		_, _ = io.WriteString(c, a)
	}
}

func TestControl(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	path := serve(t, func(method string, arg json.RawMessage, fds []int) string {
		switch method {
		case "echo":
			return `{"success":true,"err":"","result":` + string(arg) + `}`
		case "write":
			for _, fd := range fds {
				f := os.NewFile(uintptr(fd), "given")
				_, _ = f.WriteString("through the descriptor")
				_ = f.Close()
			}
			return `{"success":true,"err":"","result":{}}`
		case "refuse":
			return `{"success":false,"err":"no","result":null}`
		case "hang":
			<-block
		case "garbage":
			return "]["
		}
		return ""
	})
	ctx := context.Background()
	c, err := dial(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	var back []string
	long := strings.Repeat("x", 1<<20)
	if err := c.call(ctx, "echo", []string{"a", long}, nil, &back); err != nil || len(back) != 2 || back[1] != long {
		t.Errorf("echo: got %d strings, %v", len(back), err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.call(ctx, "write", nil, []*os.File{w, w}, nil); err != nil {
		t.Errorf("write: %v", err)
	}
	_ = w.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "through the descriptorthrough the descriptor" {
		t.Errorf("the descriptors brought %q, %v", b, err)
	}
	_ = r.Close()
	if err := c.call(ctx, "refuse", nil, nil, nil); err != (refusal{"no"}) || gone(err) {
		t.Errorf("refuse: got %v", err)
	}
	if err := c.call(ctx, "die", nil, nil, nil); !gone(err) {
		t.Errorf("die: got %v, want a lost connection", err)
	}
	for name, want := range map[string]func(error) bool{
		"hang":    func(err error) bool { return errors.Is(err, context.DeadlineExceeded) },
		"garbage": func(err error) bool { return err != nil && !gone(err) },
	} {
		c, err := dial(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		if err := c.call(short, name, nil, nil, nil); !want(err) {
			t.Errorf("%s: got %v", name, err)
		}
		cancel()
		c.close()
	}
	if _, err := dial(ctx, filepath.Join(t.TempDir(), "none")); !fault.Is(err, fault.Unavailable) || !gone(err) {
		t.Errorf("dial of nothing: got %v", err)
	}
}
