package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// The methods of the sentry's control server that are used here.
const (
	methodStart      = "containerManager.StartRoot"
	methodRestore    = "containerManager.Restore"
	methodCheckpoint = "containerManager.Checkpoint"
	methodSignal     = "containerManager.Signal"
	methodWait       = "containerManager.Wait"
	methodLinks      = "containerManager.CreateLinksAndRoutes"
)

// control is a connection to the control server of a sentry. The protocol: the
// client writes one JSON object {method, arg}, whose first byte carries the
// descriptors; the server answers with {success, err, result}. One call at a time.
type control struct {
	conn *net.UnixConn
	in   *json.Decoder
}

// refusal is an error that the sentry answered with, as opposed to one of the connection.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }

// dial connects to the socket at path, whatever the length of the path.
func dial(ctx context.Context, path string) (*control, error) {
	// sun_path holds 108 bytes: go through a descriptor of the directory.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, fault.Wrap(err, "connect to", "the sandbox's kernel")
	}
	defer func() { _ = dir.Close() }()
	short := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(path))
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", short)
	if err != nil {
		return nil, &fault.Error{Class: fault.Unavailable, Op: "connect to", Object: "the sandbox's kernel", Err: err}
	}
	return &control{conn: c.(*net.UnixConn), in: json.NewDecoder(c)}, nil
}

func (c *control) close() { _ = c.conn.Close() }

// call does one call and decodes the result into result, unless that is nil.
// When ctx ends first, the connection is of no use any more.
func (c *control) call(ctx context.Context, method string, arg any, files []*os.File, result any) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := c.exchange(method, arg, files, result)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

func (c *control) exchange(method string, arg any, files []*os.File, result any) error {
	msg, err := json.Marshal(map[string]any{"method": method, "arg": arg})
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	// The descriptors go with the first byte.
	n, _, err := c.conn.WriteMsgUnix(msg, rights, nil)
	runtime.KeepAlive(files)
	if err == nil && n < len(msg) {
		_, err = c.conn.Write(msg[n:])
	}
	if err != nil {
		return err
	}
	answer := struct {
		Success bool            `json:"success"`
		Err     string          `json:"err"`
		Result  json.RawMessage `json:"result"`
	}{}
	if err := c.in.Decode(&answer); err != nil {
		return err
	}
	if !answer.Success {
		return refusal{answer.Err}
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, result)
}

// gone reports that the sentry ended, or never listened, rather than refused.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// The arguments of the calls, as the sentry names them.

type restoreArgs struct {
	HavePagesFile  bool
	HaveDeviceFile bool
	Background     bool
}

type checkpointArgs struct {
	Metadata      map[string]string `json:"metadata"`
	HavePagesFile bool              `json:"have_pages_file"`
	Resume        bool
}

type signalArgs struct {
	CID   string
	Signo int32
	PID   int32
	Mode  int // 0: the process, 1: all processes
}

// oneLine is the first line of text that says something, shortened.
func oneLine(text []byte) string {
	for l := range bytes.SplitSeq(text, []byte("\n")) {
		if l = bytes.TrimSpace(l); len(l) > 0 {
			if len(l) > 400 {
				return fmt.Sprintf("%s...", l[:400])
			}
			return string(l)
		}
	}
	return ""
}
