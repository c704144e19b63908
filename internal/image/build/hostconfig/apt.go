package hostconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Where a sandbox sees apt's configuration (APT_CONFIG names it there), and the
// same for an apt that runs on the machine itself.
const (
	aptConf     = Target + "/apt.conf"
	aptHostConf = Target + "/apt-host.conf"
)

// AptConf is the configuration for an apt that runs on this machine, outside of
// any sandbox, as a file; its apt must not read the machine's own besides.
func (s *Snapshot) AptConf() string { return s.Path(aptHostConf) }

// acquired are the branches below Acquire:: that say how to reach a server. The
// rest (indexes to fetch, languages, compression) is the image's own affair.
var acquired = regexp.MustCompile(`(?i)^Acquire::(http|https|ftp|tor\+?[a-z]*|socks5h|Retries|Max-FutureTime|Check-Valid-Until|Check-Date|ForceIPv4|ForceIPv6|ForceHash|By-Hash|Queue-Mode|AllowInsecureRepositories|AllowWeakRepositories|EnableSrvRecords)(::|$)`)

// aptLine is one line of `apt-config dump`.
var aptLine = regexp.MustCompile(`^([A-Za-z0-9_:./+*-]+) "(.*)";$`)

// apt copies the machine's ways to its package servers.
func (s *Snapshot) apt(ctx context.Context) error {
	dump, err := s.opts.AptConfig(ctx)
	if err != nil {
		return err
	}
	var inside, outside bytes.Buffer
	line := func(b *bytes.Buffer, key, value string) { fmt.Fprintf(b, "%s \"%s\";\n", key, value) }
	both := func(key, value string) { line(&inside, key, value); line(&outside, key, value) }
	bound := func(key, target string) { line(&inside, key, target); line(&outside, key, s.Path(target)) }

	// A step's files are private to root; apt's own user could not read them.
	both("APT::Sandbox::User", "root")
	both("Acquire::Retries", "3")
	both("Acquire::Languages", "none")
	if _, err := os.Stat(filepath.Join(s.dir, caFile)); err == nil {
		bound("Acquire::https::CaInfo", path.Join(Target, caFile))
	}
	for l := range strings.Lines(string(dump)) {
		m := aptLine.FindStringSubmatch(strings.TrimSpace(l))
		if m == nil || !acquired.MatchString(m[1]) || m[2] == "" {
			continue
		}
		key, value := m[1], s.url(m[2])
		switch leaf := strings.ToLower(key[strings.LastIndex(key, ":")+1:]); leaf {
		case "sslcert", "sslkey", "cainfo", "crlfile":
			if strings.HasPrefix(leaf, "ssl") && !s.opts.Credentials {
				continue
			}
			target, err := s.copy(value)
			if err != nil {
				return err
			}
			if target != "" {
				bound(key, target)
			}
		case "capath", "proxy-auto-detect", "proxyautodetect":
			// A directory of the machine, a program of the machine: neither is in the sandbox.
		default:
			both(key, value)
		}
	}
	if s.opts.Credentials {
		auth, err := s.aptAuth()
		if err != nil {
			return err
		}
		if len(auth) > 0 {
			target, err := s.write("auth.conf", auth)
			if err != nil {
				return err
			}
			bound("Dir::Etc::netrc", target)
		}
	}
	for target, b := range map[string]*bytes.Buffer{aptConf: &inside, aptHostConf: &outside} {
		if _, err := s.write(path.Base(target), b.Bytes()); err != nil {
			return err
		}
	}
	s.set["APT_CONFIG"] = aptConf
	s.Mirrors, err = s.mirrors()
	return err
}

// aptAuth joins the files in which apt finds passwords.
func (s *Snapshot) aptAuth() ([]byte, error) {
	names := []string{"/etc/apt/auth.conf"}
	parts, err := s.list("/etc/apt/auth.conf.d", ".conf")
	if err != nil {
		return nil, err
	}
	var all []byte
	for _, name := range append(names, parts...) {
		b, err := s.read(name)
		if err != nil {
			return nil, err
		}
		if len(b) > 0 {
			all = append(append(all, b...), '\n')
		}
	}
	return all, nil
}

// list gives the files in a directory of the machine with one of the suffixes, sorted.
func (s *Snapshot) list(dir string, suffixes ...string) ([]string, error) {
	entries, err := os.ReadDir(s.host(dir))
	if err != nil {
		return nil, absent(err)
	}
	var names []string
	for _, e := range entries {
		if slices.Contains(suffixes, path.Ext(e.Name())) {
			names = append(names, path.Join(dir, e.Name()))
		}
	}
	return names, nil
}

// aptConfigDump asks this machine's apt. On a machine without apt there is nothing to say.
func aptConfigDump(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "apt-config", "dump")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("apt-config dump: %w", err)
	}
	return out, nil
}
