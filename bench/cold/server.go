package main

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
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/server"
)

// serverProcess is one `brisk up` on the benchmark's data directory.
type serverProcess struct {
	cmd    *exec.Cmd
	client *api.Client
	paths  server.Paths
	stderr bytes.Buffer
	ready  time.Duration // from exec to the first answer
}

// up starts a server that keeps pool created sandboxes for a function (-1: none).
func up(ctx context.Context, brisk, data string, pool int) (*serverProcess, error) {
	paths, err := server.PathsOf(data)
	if err != nil {
		return nil, err
	}
	s := &serverProcess{paths: paths, cmd: exec.Command(brisk, "up", "--data", data, fmt.Sprintf("--pool=%d", pool))}
	s.cmd.Stderr = &s.stderr
	start := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.client = api.Dial(paths.Socket(), "default")
	for deadline := start.Add(30 * time.Second); ; {
		if _, err := s.client.Info(ctx); err == nil {
			s.ready = time.Since(start)
			return s, nil
		}
		if time.Now().After(deadline) {
			_ = s.cmd.Process.Kill()
			return nil, fmt.Errorf("the server did not come up: %s", s.stderr.String())
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *serverProcess) down() error {
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the server ended badly: %w: %s", err, s.stderr.String())
	}
	return nil
}

// rss is the server's resident memory in bytes.
func (s *serverProcess) rss() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, l := range strings.Split(string(b), "\n") {
		var kb int64
		if _, err := fmt.Sscanf(l, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("no VmRSS of the server")
}

// settle waits until the function has exactly the given number of created
// sandboxes and nothing else: the state from which a cold start begins.
func (s *serverProcess) settle(ctx context.Context, created int) error {
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		live, err := s.client.Instances(ctx)
		if err != nil {
			return err
		}
		n := 0
		for _, i := range live {
			if i.State == "created" {
				n++
			}
		}
		if n == created && len(live) == created {
			return nil
		}
	}
	return fmt.Errorf("the server did not settle at %d created sandboxes", created)
}

// program is a running `brisk run FILE` that makes a call whenever it is asked.
type program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

type answer struct {
	MS    float64         `json:"ms"`
	Value json.RawMessage `json:"value"`
}

func start(brisk, data, file string) (*program, error) {
	p := &program{cmd: exec.Command(brisk, "run", "--data", data, file)}
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

func (p *program) call() (answer, error) {
	var a answer
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return a, err
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("the program ended: %w", err)
	}
	return a, json.Unmarshal(line, &a)
}

func (p *program) end() error {
	_ = p.in.Close()
	return p.cmd.Wait()
}

// dropCaches makes the next reads come from the disk.
func dropCaches() error {
	if err := exec.Command("sync").Run(); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}
