// Package s3test runs a real S3 server, versitygw over a directory, for tests and
// benchmarks. scripts/setup.sh s3 installs it.
package s3test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Keys that the server knows, which may do anything.
const (
	AccessKey = "brisk-test"
	SecretKey = "brisk-test-secret"
)

// Bucket is there from the start.
const Bucket = "bucket"

// Server is a running versitygw.
type Server struct {
	Dir  string // where objects are: Dir/data/BUCKET/KEY
	Addr string // HOST:PORT
	Args []string

	program string
	command *exec.Cmd     // nil: not running
	exited  chan struct{} // closed when it has ended
	output  *bytes.Buffer
}

// Find gives the path of versitygw: $BRISK_VERSITYGW, else the one that setup.sh
// linked into this checkout; "" if there is none.
func Find() string {
	if path := os.Getenv("BRISK_VERSITYGW"); path != "" {
		return path
	}
	_, file, _, _ := runtime.Caller(0)
	for _, path := range []string{
		filepath.Join(filepath.Dir(file), "../../../../.cache/bin/versitygw"),
		".cache/bin/versitygw", // built with -trimpath, and run from the checkout
	} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// Start runs a server until the test ends. Without versitygw the test is skipped, unless
// $BRISK_VERSITYGW says that there is one.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if Find() == "" {
		t.Skip("there is no versitygw: scripts/setup.sh s3 installs it")
	}
	s, err := Run(t.Context(), t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

// Run starts a server over dir, with further arguments of versitygw. Whoever
// calls it ends it with Kill.
func Run(ctx context.Context, dir string, args ...string) (*Server, error) {
	s := &Server{Dir: dir, Args: args, program: Find()}
	if s.program == "" {
		return nil, errors.New("there is no versitygw: scripts/setup.sh s3 installs it")
	}
	if err := os.MkdirAll(filepath.Join(dir, "data", Bucket), 0o700); err != nil {
		return nil, err
	}
	// A port that was free just now may be somebody else's a moment later.
	var err error
	for range 5 {
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
		s.Addr = l.Addr().String()
		l.Close()
		if err = s.Restart(ctx); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// Restart starts the server, which was killed, again.
func (s *Server) Restart(ctx context.Context) error {
	args := append([]string{"--port", s.Addr, "--health", "/health", "--quiet"}, s.Args...)
	s.command = exec.Command(s.program, append(args, "posix", filepath.Join(s.Dir, "data"))...)
	s.command.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
	s.output = &bytes.Buffer{}
	s.command.Stdout, s.command.Stderr = s.output, s.output
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command, started, exited := s.command, make(chan error), make(chan struct{})
	s.exited = exited
	go func() {
		defer close(exited)
		// The server ends with the thread that started it, so that stays as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		s.command = nil
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint()+"/health", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-exited:
			return fmt.Errorf("versitygw ended: %s", s.output)
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("versitygw does not answer: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill ends the server as a crash would. It may be called again.
func (s *Server) Kill() {
	if s.command == nil {
		return
	}
	_ = s.command.Process.Kill()
	<-s.exited
	s.command = nil
}

// Endpoint is the server's URL.
func (s *Server) Endpoint() string { return "http://" + s.Addr }

// URL names a store in the server's bucket.
func (s *Server) URL(prefix string) string {
	return "s3://" + Bucket + "/" + prefix + "?endpoint=" + s.Endpoint()
}

// Setenv puts the server's keys into the environment, and keeps the machine's own
// settings out.
func Setenv(t testing.TB) {
	t.Helper()
	none := filepath.Join(t.TempDir(), "none")
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": AccessKey, "AWS_SECRET_ACCESS_KEY": SecretKey, "AWS_SESSION_TOKEN": "",
		"AWS_PROFILE": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "",
		"AWS_CONFIG_FILE": none, "AWS_SHARED_CREDENTIALS_FILE": none, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
}
