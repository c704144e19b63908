// Package cluster runs three real servers of one cluster, each in a network
// namespace as on a machine of its own, over a real S3 server: what is tested is
// what crosses the wire when machines die, hang, lie, and are removed.
//
// The machines hang on a bridge in a fourth namespace, the hub. A forwarder there
// leads to the S3 server and counts what each machine gets from it, which is how
// the tests know where bytes came from.
//
// They need root, ip, runsc and versitygw (scripts/setup.sh), and are skipped
// where there is no root or no versitygw.
package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/sandbox/netns"
	"brisk.dev/brisk/internal/store/s3/s3test"
)

// soon is how long tests wait for what takes some beats: only a defect reaches it.
const soon = 30 * time.Second

var briskBin, readerBin string

func TestMain(m *testing.M) {
	if dir := os.Getenv(liarVariable); dir != "" {
		lie(dir)
		return
	}
	if os.Geteuid() != 0 {
		fmt.Println("the cluster tests make network namespaces and sandboxes, and need root: skipped")
		os.Exit(0)
	}
	os.Exit(func() int {
		work, err := os.MkdirTemp("", "brisk-cluster-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(work)
		readerBin = filepath.Join(work, "reader")
		builds := map[string]string{readerBin: "./testdata/reader"}
		if briskBin = os.Getenv("BRISK_BIN"); briskBin == "" {
			briskBin = filepath.Join(work, "brisk")
			builds[briskBin] = "../../cmd/brisk"
		}
		for path, src := range builds {
			cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, src)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", src, err, out)
				return 1
			}
		}
		if os.Getenv("BRISK_RUNSC") == "" {
			if runsc, err := filepath.Abs("../../bin/runsc"); err == nil {
				if _, err := os.Stat(runsc); err == nil {
					os.Setenv("BRISK_RUNSC", runsc)
				}
			}
		}
		return m.Run()
	}())
}

// lab is three machines and the hub.
type lab struct {
	t      *testing.T
	prefix string // of the namespaces' names
	url    string // of the store

	mu     sync.Mutex
	origin map[string]int64 // bytes that came from the origin, by the machine's address
}

// machine is one of them.
type machine struct {
	lab    *lab
	number int
	name   string // in the cluster
	data   string
	server *exec.Cmd // nil: none runs
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(t, err, "ip %s: %s", strings.Join(args, " "), out)
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if s3test.Find() == "" {
		t.Skip("there is no versitygw: scripts/setup.sh s3 installs it")
	}
	l := &lab{t: t, prefix: fmt.Sprintf("brisk-t%d-", os.Getpid()), origin: map[string]int64{}}
	hub := l.prefix + "hub"
	l.addNamespace(hub)
	ip(t, "-n", hub, "link", "add", "hub", "type", "bridge")
	ip(t, "-n", hub, "addr", "add", "10.231.0.254/24", "dev", "hub")
	ip(t, "-n", hub, "link", "set", "hub", "up")
	l.url = "s3://" + s3test.Bucket + "/images?endpoint=http://10.231.0.254:9000"
	var listener net.Listener
	err := netns.Do(filepath.Join("/run/netns", hub), func() (err error) {
		listener, err = net.Listen("tcp", "10.231.0.254:9000")
		return err
	})
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	// Only now: a process ends with the thread that started it, and the thread that
	// was in the namespace has ended.
	s3test.Setenv(t)
	s3 := s3test.Start(t)
	go l.forward(listener, s3.Addr)
	return l
}

func (l *lab) addNamespace(name string) {
	l.t.Helper()
	ip(l.t, "netns", "add", name)
	l.t.Cleanup(func() { ip(l.t, "netns", "del", name) })
	ip(l.t, "-n", name, "link", "set", "lo", "up")
}

// forward leads to the S3 server, and counts.
func (l *lab) forward(from net.Listener, to string) {
	for {
		in, err := from.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer out.Close()
			go func() {
				_, _ = io.Copy(out, in)
				out.Close()
			}()
			host, _, _ := net.SplitHostPort(in.RemoteAddr().String())
			_, _ = io.Copy(&counter{in, l, host}, out)
		}()
	}
}

type counter struct {
	io.Writer
	lab  *lab
	host string
}

func (c *counter) Write(b []byte) (int, error) {
	c.lab.mu.Lock()
	c.lab.origin[c.host] += int64(len(b))
	c.lab.mu.Unlock()
	return c.Writer.Write(b)
}

// machine connects another machine to the hub.
func (l *lab) machine(number int, name string) *machine {
	l.t.Helper()
	m := &machine{lab: l, number: number, name: name, data: filepath.Join(l.t.TempDir(), "data")}
	l.addNamespace(m.namespace())
	ip(l.t, "-n", l.prefix+"hub", "link", "add", m.port(), "type", "veth", "peer", "name", "eth0", "netns", m.namespace())
	ip(l.t, "-n", l.prefix+"hub", "link", "set", m.port(), "master", "hub", "up")
	ip(l.t, "-n", m.namespace(), "addr", "add", m.address()+"/24", "dev", "eth0")
	ip(l.t, "-n", m.namespace(), "link", "set", "eth0", "up")
	ip(l.t, "-n", m.namespace(), "route", "add", "default", "via", "10.231.0.254")
	l.t.Cleanup(func() {
		m.kill()
		m.brisk("down")
	})
	return m
}

func (m *machine) namespace() string { return fmt.Sprintf("%s%d", m.lab.prefix, m.number) }
func (m *machine) port() string      { return fmt.Sprintf("port%d", m.number) }
func (m *machine) address() string   { return fmt.Sprintf("10.231.0.%d", m.number) }

// cut has all that is sent to and from the machine vanish; mend ends that.
func (m *machine) cut()  { ip(m.lab.t, "-n", m.lab.prefix+"hub", "link", "set", m.port(), "down") }
func (m *machine) mend() { ip(m.lab.t, "-n", m.lab.prefix+"hub", "link", "set", m.port(), "up") }

// command runs a program on the machine.
func (m *machine) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + m.namespace(), program}, args...)...)
	cmd.Env = append(os.Environ(), "BRISK_DATA="+m.data)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// try runs a brisk command to its end.
func (m *machine) try(args ...string) (code int, out, errs string) {
	m.lab.t.Helper()
	cmd := m.command(briskBin, args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	require.NoError(m.lab.t, cmd.Start())
	stop := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// brisk runs a command that has to succeed.
func (m *machine) brisk(args ...string) string {
	m.lab.t.Helper()
	code, out, errs := m.try(args...)
	require.Equal(m.lab.t, 0, code, "%s: brisk %s: %s", m.name, strings.Join(args, " "), errs)
	return out
}

// ask runs a command with --json.
func (m *machine) ask(v any, args ...string) {
	m.lab.t.Helper()
	require.NoError(m.lab.t, json.Unmarshal([]byte(m.brisk(append(args, "--json")...)), v))
}

// up starts the server, which others can reach.
func (m *machine) up(args ...string) {
	m.lab.t.Helper()
	m.server = m.command(briskBin, append([]string{"up", "--node", m.name, "--listen", ":7720"}, args...)...)
	require.NoError(m.lab.t, m.server.Start())
	var why string
	for end := time.Now().Add(soon); time.Now().Before(end); {
		var code int
		if code, _, why = m.try("node", "ls"); code == 0 {
			return
		}
	}
	log, _ := os.ReadFile(filepath.Join(m.data, "log", "server.log"))
	require.Fail(m.lab.t, m.name+" does not start", "%s\n%s", why, log)
}

// kill ends the server as a crash would.
func (m *machine) kill() {
	if m.server != nil {
		_ = m.server.Process.Kill()
		_ = m.server.Wait()
		m.server = nil
	}
}

// nodes is what the tests want to know of `brisk node ls`.
type nodes struct {
	Members []struct {
		Name  string `json:"name"`
		Alive bool   `json:"alive"`
	} `json:"members"`
	Peers   peers  `json:"peers"`
	Trouble string `json:"trouble"`
}

type peers struct {
	Hits  int64 `json:"hits"`
	Peers []struct {
		Name     string `json:"name"`
		State    string `json:"state"`
		Reason   string `json:"reason"`
		Reads    int64  `json:"reads"`
		Failures int64  `json:"failures"`
		Lies     int64  `json:"lies"`
	} `json:"peers"`
}

func (m *machine) nodes() (n nodes) {
	m.lab.t.Helper()
	m.ask(&n, "node", "ls")
	return n
}

// waitPeers waits until the machine can ask exactly these others.
func (m *machine) waitPeers(want ...string) {
	m.lab.t.Helper()
	var have []string
	require.Eventually(m.lab.t, func() bool {
		have = nil
		for _, p := range m.nodes().Peers.Peers {
			if p.State == "ready" {
				have = append(have, p.Name)
			}
		}
		return fmt.Sprint(have) == fmt.Sprint(want)
	}, soon, 50*time.Millisecond, "%s can ask %v", m.name, &have)
}

// fromOrigin measures what the machine gets from the origin while f runs.
func (m *machine) fromOrigin(f func()) int64 {
	count := func() int64 {
		m.lab.mu.Lock()
		defer m.lab.mu.Unlock()
		return m.lab.origin[m.address()]
	}
	before := count()
	f()
	return count() - before
}
