package e2e

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dialer is a program that says of each HOST:PORT whether it can be connected to.
const dialer = `
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
        print("open")
    except OSError as e:
        print(type(e).__name__)
`

// dial connects from a container to targets and tells how each went.
func (s *site) dial(t *testing.T, flags []string, targets ...string) []string {
	t.Helper()
	args := append([]string{"run", "--image", s.debian(t)}, flags...)
	args = append(append(args, "--", "python3", "-c", dialer), targets...)
	return strings.Fields(s.ok(t, args...))
}

// hostListener listens on all of the host's addresses; it gives one of them, with
// the port. The machine itself can connect to it.
func hostListener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			target := net.JoinHostPort(n.IP.String(), strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
			c, err := net.Dial("tcp", target)
			require.NoError(t, err)
			c.Close()
			return target
		}
	}
	t.Skip("SKIPPED: this machine has no address of its own")
	return ""
}

func TestNetworkIsClosedWhereItShouldBe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	host := hostListener(t)
	address, port, err := net.SplitHostPort(host)
	require.NoError(t, err)
	gateway := strings.TrimSpace(s.ok(t, "run", "--image", s.debian(t), "--", "python3", "-c", `
import socket, struct
for line in open("/proc/net/route").readlines()[1:]:
    f = line.split()
    if f[1] == "00000000":
        print(socket.inet_ntoa(struct.pack("<I", int(f[2], 16))))`))
	require.NotNil(t, net.ParseIP(gateway), gateway)

	closed := []string{host, gateway + ":" + port, "169.254.169.254:80", "10.0.0.1:80", "172.16.0.1:80", "192.168.0.1:80", "100.64.0.1:80", "127.0.0.1:" + port}
	for i, got := range s.dial(t, nil, closed...) {
		require.Equal(t, "ConnectionRefusedError", got, closed[i])
	}
	require.Equal(t, []string{"open", "ConnectionRefusedError"}, s.dial(t, []string{"--allow-network", address + "/32"}, host, "169.254.169.254:80"))
	require.Equal(t, []string{"ConnectionRefusedError"}, s.dial(t, nil, host), "it was allowed for one container only")

	// Nobody reaches a sandbox from another.
	p := s.begin(t, "run", "--image", s.debian(t), "--", "python3", "-c", `
import socket, struct
s = socket.create_server(("0.0.0.0", 8000))
c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
c.connect(("192.0.2.1", 9))
print(c.getsockname()[0], flush=True)
s.accept()`)
	other := p.waitLine(t, ".")
	require.NotNil(t, net.ParseIP(other), other)
	require.Equal(t, []string{"ConnectionRefusedError"}, s.dial(t, nil, other+":8000"))

	// Without a network there is none, and none is the same for names.
	r := s.brisk(t, "run", "--image", s.debian(t), "--block-network", "--", "python3", "-c", dialer, host, "deb.debian.org:80", "169.254.169.254:80")
	require.Equal(t, result{line: r.line, out: "OSError\ngaierror\nOSError\n"}, r)
	r = s.in(t, "sh", "-c", "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '")
	require.Equal(t, "lo\n", r.out)
}

// mirror is what the machine can reach when it has a network at all.
const mirror = "deb.debian.org"

func needOutbound(t *testing.T) {
	t.Helper()
	c, err := net.DialTimeout("tcp", mirror+":80", 5*time.Second)
	if err != nil {
		t.Skipf("SKIPPED: this machine does not reach %s: %v", mirror, err)
	}
	c.Close()
}

func TestNetworkReachesTheWorld(t *testing.T) {
	t.Parallel()
	needOutbound(t)
	s := shared(t)
	require.Equal(t, []string{"open"}, s.dial(t, nil, mirror+":80"))
	fetch := `
import urllib.request
print(urllib.request.urlopen("http://deb.debian.org/debian/dists/bookworm/Release", timeout=30).read(200).decode())`
	require.Contains(t, s.ok(t, "run", "--image", s.debian(t), "--user", "nobody", "--", "python3", "-c", fetch), "Suite: oldstable")
}

// A function's network, cold and restored: another namespace, another address.
func TestFunctionNetworkSurvivesTheSnapshot(t *testing.T) {
	t.Parallel()
	s := shared(t)
	host := hostListener(t)
	address, _, _ := net.SplitHostPort(host)
	file := s.write(t, "net.py", `
import brisk, socket
app = brisk.App("net")

def attempt(host, port):
    try:
        socket.create_connection((host, port), timeout=10).close()
        return "open"
    except OSError as e:
        return type(e).__name__

@app.function(scaledown_window=0.2, allow_networks=["`+address+`/32"])
def dial(target: str):
    host, port = target.rsplit(":", 1)
    return attempt(host, int(port)), attempt("169.254.169.254", 80)

@app.function(scaledown_window=0.2, enable_memory_snapshot=False)
def closed(target: str):
    host, port = target.rsplit(":", 1)
    return attempt(host, int(port))
`)
	want := "('open', 'ConnectionRefusedError')\n"
	require.Equal(t, want, s.ok(t, "run", file+"::dial", "--target", host))
	require.Equal(t, "'ConnectionRefusedError'\n", s.ok(t, "run", file+"::closed", "--target", host))
	s.ready(t, "net")
	for range 3 {
		s.cooled(t, "net")
		s.ready(t, "net")
		require.Equal(t, want, s.ok(t, "run", file+"::dial", "--target", host))
		require.Equal(t, "restored", s.lastCall(t, "net").Start)
	}
}

// The resolvers of the host serve inside, wherever they are.
func TestNetworkResolvesNames(t *testing.T) {
	t.Parallel()
	if _, err := net.LookupHost(mirror); err != nil {
		t.Skipf("SKIPPED: this machine does not resolve %s: %v", mirror, err)
	}
	s := shared(t)
	conf, err := os.ReadFile("/etc/resolv.conf")
	require.NoError(t, err)
	out := s.ok(t, "run", "--image", s.debian(t), "--", "sh", "-c", "cat /etc/resolv.conf; getent hosts deb.debian.org")
	require.Contains(t, out, mirror)
	if !strings.Contains(string(conf), "nameserver 127.") {
		require.Contains(t, out, strings.TrimSpace(strings.Split(string(conf), "\n")[0]))
	}
}
