// Package networktest is a small world for tests of networks: the test process runs
// in a network namespace of its own, which plays the host, and a second one plays
// the rest of the world. Nothing of the real machine's network is seen or changed.
package networktest

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/sandbox/netns"
)

// Addresses in the world. Everyone of them answers TCP on port 80 with one line,
// the address that the question came from, connections to port 81 by saying
// nothing, and name queries on port 53.
const (
	Public   = "8.8.8.8"
	Private  = "10.1.2.3"
	Private2 = "192.168.7.7"
	Metadata = "169.254.169.254"
	Resolver = "10.255.255.53"
	Host     = "192.0.2.2" // of the host on its uplink
	world    = "192.0.2.1"
)

// Answer is the address that every name has.
var Answer = [4]byte{203, 0, 113, 7}

const inside = "BRISK_TEST_WORLD"

// Main is for TestMain: as root, it runs the tests in a process with namespaces of
// its own; otherwise it runs them here.
func Main(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		if os.Getenv(inside) != "" {
			if err := prepare(); err != nil {
				fmt.Fprintln(os.Stderr, "preparing the test's namespaces:", err)
				os.Exit(1)
			}
		}
		code := m.Run()
		if err := goleak.Find(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, "left running:", err)
			code = 1
		}
		os.Exit(code)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState == nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// New connects the test's namespace to a world. It skips without root.
func New(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path := filepath.Join(t.TempDir(), "world")
	must(t, netns.New(path))
	t.Cleanup(func() { must(t, netns.Remove(path)) })
	ns, err := os.Open(path)
	must(t, err)
	defer func() { _ = ns.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "up0", 1400
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up1", PeerNamespace: netlink.NsFd(ns.Fd())}))
	t.Cleanup(func() {
		if l, err := netlink.LinkByName("up0"); err == nil {
			must(t, netlink.LinkDel(l))
		}
	})
	must(t, configure("up0", Host+"/24"))
	must(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(world)}))
	must(t, netns.Do(path, func() error {
		if err := configure("up1", world+"/24"); err != nil {
			return err
		}
		for _, a := range []string{Public, Private, Private2, Metadata, Resolver} {
			if err := configure("lo", a+"/32"); err != nil {
				return err
			}
		}
		l, err := net.Listen("tcp4", "0.0.0.0:80")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		go Echo(l)
		silent, err := net.Listen("tcp4", "0.0.0.0:81")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = silent.Close() })
		d, err := net.ListenPacket("udp4", Resolver+":53")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = d.Close() })
		go names(d)
		return nil
	}))
}

// Resolvers makes the host's resolv.conf say something, for this process only.
func Resolvers(t testing.TB, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	must(t, unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH)) })
}

func configure(link, addr string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(l, a); err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// Echo answers connections with the address that they come from.
func Echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		_, _ = io.WriteString(c, host)
		_ = c.Close()
	}
}

// names answers every name query with Answer.
func names(c net.PacketConn) {
	b := make([]byte, 4096)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response = true
		m.Additionals = nil
		if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
				Body:   &dnsmessage.AResource{A: Answer},
			}}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = c.WriteTo(out, from)
		}
	}
}

// Fetch connects from a namespace to host:port and gives what is said there.
func Fetch(path, address string) (answer string, err error) {
	err = netns.Do(path, func() error {
		c, err := net.DialTimeout("tcp4", address, 3*time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(3 * time.Second))
		b, err := io.ReadAll(c)
		answer = string(b)
		return err
	})
	return answer, err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
