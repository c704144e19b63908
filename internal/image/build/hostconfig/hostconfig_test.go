package hostconfig

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine is a made-up host.
type machine struct {
	t       *testing.T
	root    string
	environ []string
	apt     string
}

func newMachine(t *testing.T) *machine { return &machine{t: t, root: t.TempDir()} }

func (m *machine) file(name, content string) {
	p := filepath.Join(m.root, name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(m.t, os.WriteFile(p, []byte(content), 0o600))
}

func (m *machine) take(credentials bool) (*Snapshot, map[string]string) {
	m.t.Helper()
	s, err := Take(m.t.Context(), Options{
		Parent: m.t.TempDir(), Credentials: credentials, Environ: append([]string{}, m.environ...), Root: m.root,
		AptConfig: func(context.Context) ([]byte, error) { return []byte(m.apt), nil },
	})
	require.NoError(m.t, err)
	m.t.Cleanup(func() { s.Close() })
	env := map[string]string{}
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	return s, env
}

// inside reads a file as a sandbox would see it.
func (m *machine) inside(s *Snapshot, target string) string {
	m.t.Helper()
	for _, b := range s.Binds[1:] {
		if b.Target == target {
			content, err := os.ReadFile(b.Source)
			require.NoError(m.t, err)
			return string(content)
		}
	}
	content, err := os.ReadFile(s.Path(target))
	require.NoError(m.t, err)
	return string(content)
}

func TestAMachineWithNothing(t *testing.T) {
	m := newMachine(t)
	s, env := m.take(true)
	require.Equal(t, map[string]string{"APT_CONFIG": "/run/brisk-build/apt.conf"}, env)
	require.Len(t, s.Binds, 1)
	require.Equal(t, "/run/brisk-build", s.Binds[0].Target)
	require.Equal(t, Official, s.Mirrors)
	info, err := os.Stat(s.Binds[0].Source)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, info.Mode().Perm())
	require.NoError(t, s.Close())
	require.NoDirExists(t, s.Binds[0].Source)
	require.NoError(t, s.Close())
}

func TestProxiesInBothSpellings(t *testing.T) {
	m := newMachine(t)
	m.environ = []string{"http_proxy=http://u:p@proxy:3128/", "HTTPS_PROXY=u:p@proxy:3129", "no_proxy=a,b", "UNRELATED=x", "SECRET_TOKEN=y"}
	_, env := m.take(true)
	require.Equal(t, map[string]string{
		"APT_CONFIG": "/run/brisk-build/apt.conf",
		"http_proxy": "http://u:p@proxy:3128/", "HTTP_PROXY": "http://u:p@proxy:3128/",
		"https_proxy": "u:p@proxy:3129", "HTTPS_PROXY": "u:p@proxy:3129",
		"no_proxy": "a,b", "NO_PROXY": "a,b",
	}, env)
	_, env = m.take(false)
	require.Equal(t, "http://proxy:3128/", env["http_proxy"])
	require.Equal(t, "proxy:3129", env["https_proxy"])
}

func TestAuthorities(t *testing.T) {
	m := newMachine(t)
	m.file("/etc/ssl/certs/ca-certificates.crt", "distribution")
	m.file("/company.pem", "company")
	m.environ = []string{"PIP_CERT=/company.pem", "CURL_CA_BUNDLE=/missing.pem", "GIT_SSL_CAINFO=/etc/ssl/certs/ca-certificates.crt"}
	s, env := m.take(false)
	for _, name := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS"} {
		require.Equal(t, "/run/brisk-build/ca.crt", env[name], name)
	}
	require.Equal(t, "distribution", m.inside(s, env["SSL_CERT_FILE"]))
	require.Equal(t, "company", m.inside(s, env["PIP_CERT"]))
	require.Contains(t, m.inside(s, env["APT_CONFIG"]), `Acquire::https::CaInfo "/run/brisk-build/ca.crt";`)

	m.environ = []string{"SSL_CERT_FILE=/company.pem"}
	s, env = m.take(false)
	require.Equal(t, "company", m.inside(s, env["NODE_EXTRA_CA_CERTS"]))
}

const aptDump = `APT "";
APT::Architecture "amd64";
Acquire "";
Acquire::Languages "";
Acquire::Languages:: "none";
Acquire::IndexTargets::deb::DEP-11::MetaKey "$(COMPONENT)/dep11/Components-$(NATIVE_ARCHITECTURE).yml";
Acquire::http "";
Acquire::http::Proxy "http://u:p@proxy:3128/";
Acquire::http::Proxy::deb.example.com "DIRECT";
Acquire::http::Proxy-Auto-Detect "/usr/bin/auto-apt-proxy";
Acquire::https::deb.example.com::SslCert "/etc/apt/client.crt";
Acquire::https::deb.example.com::SslKey "/etc/apt/client.key";
Acquire::https::deb.example.com::CaInfo "/etc/apt/ca.crt";
Acquire::https::Verify-Peer "true";
Acquire::Check-Valid-Until "false";
Dir::Etc::netrc "auth.conf";
DPkg::Post-Invoke:: "rm -f /etc";
`

func TestApt(t *testing.T) {
	m := newMachine(t)
	m.apt = aptDump
	m.file("/etc/apt/client.crt", "cert")
	m.file("/etc/apt/client.key", "key")
	m.file("/etc/apt/ca.crt", "ca")
	m.file("/etc/apt/auth.conf", "machine a login b password c")
	m.file("/etc/apt/auth.conf.d/x.conf", "machine d login e password f")
	m.file("/etc/apt/auth.conf.d/ignored.bak", "machine g login h password i")
	s, env := m.take(true)
	conf := m.inside(s, env["APT_CONFIG"])
	settings := map[string]string{}
	for line := range strings.Lines(conf) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), " ")
		require.True(t, ok)
		settings[k] = strings.Trim(v, `";`)
	}
	require.Equal(t, "cert", m.inside(s, settings["Acquire::https::deb.example.com::SslCert"]))
	require.Equal(t, "key", m.inside(s, settings["Acquire::https::deb.example.com::SslKey"]))
	require.Equal(t, "ca", m.inside(s, settings["Acquire::https::deb.example.com::CaInfo"]))
	require.Equal(t, "machine a login b password c\nmachine d login e password f\n", m.inside(s, settings["Dir::Etc::netrc"]))
	for _, k := range []string{"SslCert", "SslKey", "CaInfo"} {
		delete(settings, "Acquire::https::deb.example.com::"+k)
	}
	require.Equal(t, map[string]string{
		"APT::Sandbox::User": "root", "Acquire::Retries": "3", "Acquire::Languages": "none",
		"Acquire::http::Proxy": "http://u:p@proxy:3128/", "Acquire::http::Proxy::deb.example.com": "DIRECT",
		"Acquire::https::Verify-Peer": "true", "Acquire::Check-Valid-Until": "false",
		"Dir::Etc::netrc": "/run/brisk-build/auth.conf",
	}, settings)

	// The same for an apt on the machine itself.
	outside, err := os.ReadFile(s.AptConf())
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(conf, Target+"/", s.Path(Target)+"/"), string(outside))
	if tool, err := exec.LookPath("apt-config"); err == nil {
		cmd := exec.Command(tool, "dump")
		cmd.Env = []string{"APT_CONFIG=" + s.AptConf()}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), `Acquire::http::Proxy "http://u:p@proxy:3128/";`)
		require.Contains(t, string(out), `Acquire::http::Proxy::deb.example.com "DIRECT";`)
	}
}

// TestCredentialsAreTheOwners: nothing of them is anywhere in a snapshot for others.
func TestCredentialsAreTheOwners(t *testing.T) {
	m := newMachine(t)
	m.apt = strings.ReplaceAll(aptDump, "u:p@", "HIDDEN:HIDDEN@")
	m.file("/etc/apt/client.crt", "HIDDEN")
	m.file("/etc/apt/client.key", "HIDDEN")
	m.file("/etc/apt/auth.conf", "machine a login b password HIDDEN")
	m.file("/etc/os-release", "ID=debian\n")
	m.file("/etc/apt/sources.list", "deb https://HIDDEN:HIDDEN@mirror.example/debian bookworm main\n")
	m.file("/etc/pip.conf", "[global]\nindex-url = https://HIDDEN:HIDDEN@pypi.example/simple\nclient-cert = /etc/client.pem\nextra-index-url =\n    https://HIDDEN@b/c\n    https://d/e\n")
	m.file("/etc/client.pem", "HIDDEN")
	m.environ = []string{"http_proxy=http://HIDDEN:HIDDEN@proxy:3128", "ALL_PROXY=HIDDEN:HIDDEN@proxy:1080",
		"PIP_INDEX_URL=https://HIDDEN@pypi.example/simple", "PIP_PROXY=HIDDEN:HIDDEN@x:1", "PIP_CLIENT_CERT=/etc/client.pem"}
	find := func(s *Snapshot) (found []string) {
		for _, kv := range s.Env {
			if strings.Contains(kv, "HIDDEN") {
				found = append(found, kv)
			}
		}
		if strings.Contains(s.Mirrors.Archive, "HIDDEN") {
			found = append(found, "mirror")
		}
		require.NoError(t, filepath.WalkDir(s.Path(Target), func(p string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			b, err := os.ReadFile(p)
			if strings.Contains(string(b), "HIDDEN") {
				found = append(found, p)
			}
			return err
		}))
		return found
	}
	owner, _ := m.take(true)
	require.Len(t, find(owner), 14)
	others, env := m.take(false)
	require.Empty(t, find(others))
	require.Equal(t, "https://pypi.example/simple", env["PIP_INDEX_URL"])
	require.Equal(t, "https://mirror.example/debian", others.Mirrors.Archive)
	require.Equal(t, "[global]\nindex-url = https://pypi.example/simple\nextra-index-url = https://b/c https://d/e\n", m.inside(others, env["PIP_CONFIG_FILE"]))
	require.NotContains(t, owner.String(), "HIDDEN")
}

func TestPip(t *testing.T) {
	m := newMachine(t)
	m.file("/etc/pip.conf", "# machine\n[global]\nindex-url = https://a/simple\ntimeout: 60\ncert=/etc/company.pem\nuser = true\n[install]\nno_binary = x\ntarget = /opt\n")
	m.file("/home/me/.config/pip/pip.conf", "[global]\nindex-url = https://b/simple\nfind-links =\n    /opt/wheels\n    https://c/links\n    file:///opt/wheels\n    relative/dir\n    /missing\n")
	m.file("/etc/company.pem", "company")
	m.file("/opt/wheels/x.whl", "wheel")
	m.environ = []string{"HOME=/home/me", "PIP_FIND_LINKS=/opt/wheels", "PIP_CACHE_DIR=/x", "PIP_REQUIRE_VIRTUALENV=1", "PIP_DEFAULT_TIMEOUT=180"}
	s, env := m.take(true)
	conf := m.inside(s, env["PIP_CONFIG_FILE"])
	lines := strings.Split(conf, "\n")
	require.Len(t, lines, 8, conf)
	cert := strings.TrimPrefix(lines[3], "cert = ")
	require.Equal(t, "company", m.inside(s, cert))
	lines[3] = ""
	wheels := s.Binds[len(s.Binds)-1]
	require.Equal(t, filepath.Join(m.root, "/opt/wheels"), wheels.Source)
	require.DirExists(t, s.Path(wheels.Target), "the place of the inner bind is there")
	require.Equal(t, []string{
		"[global]", "index-url = https://b/simple", "timeout = 60", "",
		"find-links = " + wheels.Target + " https://c/links file://" + wheels.Target, "[install]", "no-binary = x", "",
	}, lines)
	require.Equal(t, wheels.Target, env["PIP_FIND_LINKS"])
	require.Equal(t, "180", env["PIP_DEFAULT_TIMEOUT"])
	require.NotContains(t, env, "PIP_CACHE_DIR")
	require.NotContains(t, env, "PIP_REQUIRE_VIRTUALENV")

	m.environ = append(m.environ, "PIP_CONFIG_FILE=/dev/null")
	_, env = m.take(true)
	require.NotContains(t, env, "PIP_CONFIG_FILE")
}

func TestMirrors(t *testing.T) {
	const oneLine = `# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/x y] http://mirror.example/debian/ bookworm main # comment
deb-src http://src.example/debian bookworm main
deb cdrom:[Debian] bookworm main
deb http://other.example/apt stable-of-theirs main
deb http://mirror.example/debian-security bookworm-security main
`
	const deb822 = `Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm
 bookworm-updates
Components: main

Types: deb deb-src
URIs: https://secure.example/debian-security/
Suites: bookworm-security

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
`
	for _, c := range []struct {
		name, os, file, content string
		want                    Mirrors
	}{
		{"one line", "ID=debian", "/etc/apt/sources.list", oneLine, Mirrors{"http://mirror.example/debian", "http://mirror.example/debian-security"}},
		{"deb822", "PRETTY_NAME=x\nID=\"debian\"\n", "/etc/apt/sources.list.d/debian.sources", deb822, Mirrors{"http://mirror.example/debian", "https://secure.example/debian-security"}},
		{"another system", "ID=ubuntu\nID_LIKE=debian\n", "/etc/apt/sources.list", oneLine, Official},
		{"only the archive", "ID=debian", "/etc/apt/sources.list", "deb http://m/debian trixie main", Mirrors{"http://m/debian", Official.Security}},
		{"file", "ID=debian", "/etc/apt/sources.list", "deb file:/srv/debian trixie main", Official},
		{"not read", "ID=debian", "/etc/apt/sources.list.d/x.save", oneLine, Official},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.file("/etc/os-release", c.os)
			m.file(c.file, c.content)
			s, _ := m.take(true)
			require.Equal(t, c.want, s.Mirrors)
		})
	}
}

func TestRewriteSources(t *testing.T) {
	m := Mirrors{"https://mirror.example/d", "https://mirror.example/s"}
	for in, want := range map[string]string{
		"deb http://deb.debian.org/debian bookworm main\ndeb http://deb.debian.org/debian-security bookworm-security main\n": "deb https://mirror.example/d bookworm main\ndeb https://mirror.example/s bookworm-security main\n",
		"URIs: http://deb.debian.org/debian/\nSuites: x":                                                                     "URIs: https://mirror.example/d/\nSuites: x",
		"deb http://security.debian.org/debian-security x main":                                                              "deb https://mirror.example/s x main",
		"deb https://ftp.de.debian.org/debian x main":                                                                        "deb https://mirror.example/d x main",
	} {
		out, changed := m.Rewrite([]byte(in))
		require.True(t, changed)
		require.Equal(t, want, string(out))
	}
	for _, in := range []string{"deb http://deb.debian.org/debian-ports sid main", "deb http://archive.ubuntu.com/ubuntu noble main", ""} {
		out, changed := m.Rewrite([]byte(in))
		require.False(t, changed)
		require.Equal(t, in, string(out))
	}
	_, changed := Official.Rewrite([]byte("deb http://deb.debian.org/debian bookworm main\n"))
	require.False(t, changed)
}

func TestBind(t *testing.T) {
	m := newMachine(t)
	s, _ := m.take(false)
	require.NoError(t, s.Bind("/etc/apt/sources.list", []byte("deb x")))
	require.Equal(t, "deb x", m.inside(s, "/etc/apt/sources.list"))
}

// TestThisMachine takes a snapshot of the real one.
func TestThisMachine(t *testing.T) {
	s, err := Take(t.Context(), Options{Parent: t.TempDir()})
	require.NoError(t, err)
	require.NotEmpty(t, s.Env)
	require.NoError(t, s.Close())
}
