// Package drive runs Brisk for benchmarks as a user does: `brisk up`, and programs
// under `brisk run` that make a call whenever they are asked to.
package drive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/server"
)

// Server is one `brisk up` on the benchmark's data directory.
type Server struct {
	cmd    *exec.Cmd
	Client *api.Client
	Paths  server.Paths
	Ready  time.Duration // from exec to the first answer
	stderr locked
}

// locked is a buffer that is read while it is written.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Up starts a server that keeps pool created sandboxes for a function (-1: none);
// more are further arguments of brisk up.
func Up(ctx context.Context, brisk, data string, pool int, more ...string) (*Server, error) {
	paths, err := server.PathsOf(data)
	if err != nil {
		return nil, err
	}
	s := &Server{Paths: paths, cmd: exec.Command(brisk, append([]string{"up", "--data", data, fmt.Sprintf("--pool=%d", pool)}, more...)...)}
	s.cmd.Stderr = &s.stderr
	if out, err := exec.CommandContext(ctx, brisk, "down", "--data", data).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("end an earlier server: %w: %s", err, out)
	}
	start := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.Client = api.Dial(paths.Socket(), "default")
	for deadline := start.Add(30 * time.Second); ; {
		if _, err := s.Client.Info(ctx); err == nil {
			s.Ready = time.Since(start)
			return s, nil
		}
		if time.Now().After(deadline) {
			_ = s.cmd.Process.Kill()
			return nil, fmt.Errorf("the server did not come up: %s", s.stderr.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// Down ends the server and waits for it.
func (s *Server) Down() error {
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the server ended badly: %w: %s", err, s.stderr.String())
	}
	return nil
}

// PID is the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// RSS is the server's resident memory in bytes.
func (s *Server) RSS() (int64, error) { return RSS(s.PID()) }

// RSS is a process's resident memory in bytes.
func RSS(pid int) (int64, error) { return status(pid, "VmRSS") }

// PeakRSS is the most that a process has had resident, in bytes.
func PeakRSS(pid int) (int64, error) { return status(pid, "VmHWM") }

func status(pid int, field string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.SplitSeq(string(b), "\n") {
		var kb int64
		if _, err := fmt.Sscanf(l, field+": %d kB", &kb); err == nil {
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}

// Settle waits until nothing is alive but the given number of created sandboxes:
// the state from which a cold start begins.
func (s *Server) Settle(ctx context.Context, created int) error { return s.SettleOf(ctx, "", created) }

// SettleOf is Settle for the functions of one app; others may be alive.
func (s *Server) SettleOf(ctx context.Context, app string, created int) error {
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		all, err := s.Client.Instances(ctx)
		if err != nil {
			return err
		}
		n, live := 0, 0
		for _, i := range all {
			if app != "" && i.App != app {
				continue
			}
			live++
			if i.State == "created" {
				n++
			}
		}
		if n == created && live == created {
			return nil
		}
	}
	return fmt.Errorf("the server did not settle at %d created sandboxes", created)
}

// WaitSnapshot waits until the function's snapshot is there.
func (s *Server) WaitSnapshot(ctx context.Context, function string) error {
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(s.Paths.Data, "snapshots", function, "snapshot.json")); err == nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("no snapshot was made")
}

// WaitLog waits until the server's log has a line with a text, and gives the line.
func (s *Server) WaitLog(ctx context.Context, text string) (string, error) {
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for line := range strings.SplitSeq(s.stderr.String(), "\n") {
			if strings.Contains(line, text) {
				return line, nil
			}
		}
	}
	return "", fmt.Errorf("the server's log never had %q", text)
}

// Program is a running `brisk run FILE` that makes a call whenever it is asked.
type Program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Answer is what a program says of a call.
type Answer struct {
	MS    float64         `json:"ms"`
	Value json.RawMessage `json:"value"`
}

// Start runs a program; env is added to its environment.
func Start(brisk, data, file string, env ...string) (*Program, error) {
	p := &Program{cmd: exec.Command(brisk, "run", "--data", data, file)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(out)
	return p, p.cmd.Start()
}

// Call asks the program for one call.
func (p *Program) Call() (Answer, error) {
	var a Answer
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return a, err
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("the program ended: %w", err)
	}
	return a, json.Unmarshal(line, &a)
}

// End closes the program's input and waits for it.
func (p *Program) End() error {
	_ = p.in.Close()
	return p.cmd.Wait()
}

// DropCaches makes the next reads come from the disk.
func DropCaches() error {
	if err := exec.Command("sync").Run(); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// CopyFile copies a small file, and makes its directory.
func CopyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}
