// Command probe is what the conformance suite runs inside sandboxes: a static
// program that does one thing, named by its arguments, or, as an agent, dials a unix
// socket of the host's and does what it is told over it, line by line.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(64)
	}
	if os.Args[1] == "agent" {
		agent(os.Args[2])
	}
	out, err := do(os.Args[1:])
	fmt.Print(out)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// agent serves the host until it is told to exit. It dials again whenever the
// connection ends: that is how it survives a checkpoint.
func agent(socket string) {
	for {
		c, err := net.Dial("unix", socket)
		if err != nil {
			time.Sleep(2 * time.Millisecond)
			continue
		}
		in := bufio.NewReader(c)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			var args []string
			if err := json.Unmarshal([]byte(line), &args); err != nil {
				break
			}
			out, err := do(args)
			answer := map[string]string{"out": out}
			if err != nil {
				answer["err"] = err.Error()
			}
			if err := json.NewEncoder(c).Encode(answer); err != nil {
				break
			}
		}
		_ = c.Close()
	}
}

var (
	count int
	kept  [][]byte
	held  net.Conn
)

func do(args []string) (string, error) {
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	num := func(i int) int { n, _ := strconv.Atoi(arg(i)); return n }
	switch args[0] {
	case "exit":
		os.Exit(num(1))
	case "kill":
		return "", unix.Kill(os.Getpid(), unix.Signal(num(1)))
	case "echo":
		return strings.Join(args[1:], " "), nil
	case "stderr":
		_, err := fmt.Fprint(os.Stderr, arg(1))
		return "", err
	case "count":
		count++
		return strconv.Itoa(count), nil
	case "sleep":
		time.Sleep(time.Hour)
	case "until": // a file is there; then it exits with 9
		fmt.Println("ready")
		for {
			if _, err := os.Stat(arg(1)); err == nil {
				os.Exit(9)
			}
			time.Sleep(time.Millisecond)
		}
	case "trap":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		os.Exit(42)
	case "who":
		wd, _ := os.Getwd()
		groups, _ := os.Getgroups()
		host, _ := os.Hostname()
		return fmt.Sprintf("%d %d %v %s %s", os.Getuid(), os.Getgid(), groups, wd, host), nil
	case "env":
		return os.Getenv(arg(1)), nil
	case "write":
		return "", os.WriteFile(arg(1), []byte(arg(2)), 0o644)
	case "read":
		b, err := os.ReadFile(arg(1))
		return string(b), err
	case "sum": // of all files below a directory, in their order
		h := sha256.New()
		err := filepath.WalkDir(arg(1), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(h, f)
			return err
		})
		return fmt.Sprintf("%x", h.Sum(nil)), err
	case "mode":
		fi, err := os.Stat(arg(1))
		if err != nil {
			return "", err
		}
		return fi.Mode().String(), nil
	case "fill":
		return "", fill(arg(1), num(2))
	case "alloc":
		return "", alloc(num(1))
	case "spin":
		spin(time.Duration(num(1)) * time.Millisecond)
		return "", nil
	case "cpus":
		return strconv.Itoa(runtime.NumCPU()), nil
	case "fork":
		return fork(num(1))
	case "bomb":
		bomb()
	case "scatter": // root only: every process of another user
		for i := 0; ; i++ {
			c := exec.Command("/proc/self/exe", "bomb")
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(1000 + i)}}
			if err := c.Start(); err != nil {
				fmt.Println("refused", i, err)
				time.Sleep(time.Second)
			} else if i%50 == 0 {
				fmt.Println("started", i)
			}
		}
	case "dial":
		c, err := net.DialTimeout(arg(1), arg(2), time.Duration(max(num(3), 2000))*time.Millisecond)
		if err != nil {
			return "", err
		}
		defer c.Close()
		return "connected", nil
	case "hold": // a connection that stays open
		var err error
		held, err = net.DialTimeout("tcp", arg(1), 2*time.Second)
		return "", err
	case "poke": // it
		_ = held.SetDeadline(time.Now().Add(2 * time.Second))
		_, err := held.Read(make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return "open", nil
		}
		return "closed", nil
	case "fetch": // host:port; one line of answer
		c, err := net.DialTimeout("tcp", arg(1), 2*time.Second)
		if err != nil {
			return "", err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		b, err := io.ReadAll(c)
		return string(b), err
	case "ask": // a name at a server
		return ask(arg(1), arg(2))
	case "addr":
		return addresses()
	case "change":
		return "", change(arg(1))
	}
	return "", fmt.Errorf("probe does not know %q", args[0])
}

func fill(path string, mib int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i*7 + 1)
	}
	for range mib {
		if _, err := f.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func alloc(mib int) error {
	for range mib {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 512 {
			b[i] = byte(i) | 1
		}
		kept = append(kept, b)
	}
	return nil
}

// spin keeps all CPUs busy for a while.
func spin(d time.Duration) {
	end := time.Now().Add(d)
	done := make(chan bool)
	for range runtime.NumCPU() {
		go func() {
			for time.Now().Before(end) {
			}
			done <- true
		}()
	}
	for range runtime.NumCPU() {
		<-done
	}
}

// fork starts n processes that stay, and says how many it could start and why no more.
func fork(n int) (string, error) {
	var all []*exec.Cmd
	defer func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}()
	for i := range n {
		c := exec.Command("/proc/self/exe", "sleep")
		if err := c.Start(); err != nil {
			return fmt.Sprintf("%d", i), err
		}
		all = append(all, c)
	}
	return strconv.Itoa(n), nil
}

// bomb starts processes that start processes, without end, and says so when one is
// refused.
func bomb() {
	for {
		c := exec.Command("/proc/self/exe", "bomb")
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			fmt.Println("refused", err)
			time.Sleep(time.Second)
		}
	}
}

func ask(server, name string) (string, error) {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	a, err := r.LookupHost(ctx, name)
	return strings.Join(a, " "), err
}

func addresses() (string, error) {
	all, err := net.InterfaceAddrs()
	var s []string
	for _, a := range all {
		s = append(s, a.String())
	}
	return strings.Join(s, " "), err
}

// change does to a tree everything that a layer can hold.
func change(root string) error {
	in := func(p string) string { return filepath.Join(root, p) }
	steps := []func() error{
		func() error { return os.WriteFile(in("created"), []byte("new"), 0o640) },
		func() error { return os.Chown(in("created"), 1234, 70000) },
		func() error { return unix.Setxattr(in("created"), "user.note", []byte("hello"), 0) },
		func() error { return os.Chtimes(in("created"), time.Unix(1e9, 0), time.Unix(1e9, 5e8)) },
		func() error { return os.Link(in("created"), in("linked")) },
		func() error { return os.Symlink("created", in("symlink")) },
		func() error { return os.WriteFile(in("modified"), []byte("changed"), 0o644) },
		func() error { return os.Remove(in("deleted")) },
		func() error { return unix.Chmod(in("chmodded"), 0o4755) },
		func() error { return os.RemoveAll(in("replaced")) },
		func() error { return os.Mkdir(in("replaced"), 0o750) },
		func() error { return os.WriteFile(in("replaced/only"), []byte("x"), 0o600) },
		func() error { return os.RemoveAll(in("gone")) },
		func() error { return fill(in("big"), 3) },
	}
	for i, s := range steps {
		if err := s(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}
