// Package hostconfig takes a snapshot of how a machine's programs reach the
// network, so that the steps of an image's build reach it in the same way:
// proxies, certificate authorities, and what apt and pip are told about mirrors,
// indexes and credentials. (Name servers are not part of it: which of them a sandbox
// can reach is known to whoever gives it its network.)
//
// A Snapshot is environment variables and files. The files lie in a private
// directory that is bound read-only into a step's sandbox, at Target; the
// variables name them there. Nothing of it is inside an image: whoever commits a
// step leaves out what lies below Target and at the places of Binds, and Close
// removes the directory.
//
// Credentials (user names and passwords in URLs, apt's auth.conf, client
// certificates) are the machine owner's. They are only in a snapshot that was
// asked for them; any other has none.
package hostconfig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// Target is where a sandbox sees the snapshot's files.
const Target = "/run/brisk-build"

// Options say which machine to look at. The zero value is this one, without credentials.
type Options struct {
	Parent      string   // existing directory in which the private one is made; "" = the system's
	Credentials bool     // the steps run on behalf of the machine's owner
	Environ     []string // NAME=VALUE; nil = this process's
	Root        string   // where the machine's files are; "" = /
	// AptConfig gives what `apt-config dump` prints, or nothing where there is no
	// apt; nil = run it.
	AptConfig func(ctx context.Context) ([]byte, error)
}

// Bind is a file or directory of the machine that a sandbox sees, read-only.
type Bind struct {
	Source, Target string
}

// Snapshot is one machine's network configuration at one time.
type Snapshot struct {
	Env     []string // NAME=VALUE, sorted
	Binds   []Bind   // the private directory first
	Mirrors Mirrors  // of Debian

	dir  string
	opts Options
	env  map[string]string // of the machine
	set  map[string]string // what Env will be
}

// maxFile bounds a file that is copied, in bytes; a CA bundle has about 300 kB.
const maxFile = 16 << 20

// Take looks at the machine. The caller closes the snapshot.
func Take(ctx context.Context, opts Options) (*Snapshot, error) {
	if opts.Environ == nil {
		opts.Environ = os.Environ()
	}
	if opts.Root == "" {
		opts.Root = "/"
	}
	if opts.AptConfig == nil {
		opts.AptConfig = aptConfigDump
	}
	dir, err := os.MkdirTemp(opts.Parent, "host-")
	if err != nil {
		return nil, fault.Wrap(err, "copy the host's network configuration", "")
	}
	s := &Snapshot{dir: dir, opts: opts, env: map[string]string{}, set: map[string]string{}}
	for _, kv := range opts.Environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			s.env[k] = v
		}
	}
	s.Binds = []Bind{{dir, Target}}
	for _, part := range []func(context.Context) error{s.proxies, s.authorities, s.apt, s.pip} {
		if err := part(ctx); err != nil {
			s.Close()
			return nil, fault.Wrap(err, "copy the host's network configuration", "")
		}
	}
	for k, v := range s.set {
		s.Env = append(s.Env, k+"="+v)
	}
	slices.Sort(s.Env)
	return s, nil
}

// Close removes the private directory. It may be called again.
func (s *Snapshot) Close() error { return os.RemoveAll(s.dir) }

// Path is where on this machine a file of the snapshot is that a sandbox sees at target.
func (s *Snapshot) Path(target string) string {
	return filepath.Join(s.dir, strings.TrimPrefix(target, Target))
}

// Bind adds a file that a sandbox sees at target, which is outside of Target.
func (s *Snapshot) Bind(target string, content []byte) error {
	place := fmt.Sprintf("bound/%d", len(s.Binds))
	if _, err := s.write(place, content); err != nil {
		return fault.Wrap(err, "copy the host's network configuration", "")
	}
	s.Binds = append(s.Binds, Bind{filepath.Join(s.dir, place), target})
	return nil
}

// host is a path of the machine.
func (s *Snapshot) host(name string) string { return filepath.Join(s.opts.Root, name) }

// read reads a file of the machine. One that is not there, or is not a readable
// regular file, is nil: nothing in a configuration is needed.
func (s *Snapshot) read(name string) ([]byte, error) {
	f, err := os.Open(s.host(name))
	if err != nil {
		return nil, absent(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(b) > maxFile {
		return nil, fault.New(fault.Invalid, "%s has more than %d bytes", name, maxFile)
	}
	return b, err
}

func absent(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	return err
}

// write puts a file into the private directory and returns where a sandbox sees it.
func (s *Snapshot) write(name string, content []byte) (string, error) {
	file := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	// Readable inside by users other than root, such as apt's; the directory
	// itself is 0700 on the machine.
	return path.Join(Target, name), os.WriteFile(file, content, 0o644)
}

// copy puts a file of the machine into the private directory, once. It returns "" for
// one that is not there.
func (s *Snapshot) copy(name string) (string, error) {
	b, err := s.read(name)
	if err != nil || b == nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(filepath.Clean(name)))
	return s.write("files/"+hex.EncodeToString(sum[:6])+"-"+filepath.Base(name), b)
}

// directory makes a directory of the machine visible and returns where, or ""
// if it is not there.
func (s *Snapshot) directory(name string) (string, error) {
	source := s.host(name)
	info, err := os.Stat(source)
	if err != nil {
		return "", absent(err)
	}
	if !info.IsDir() {
		return "", nil
	}
	for _, b := range s.Binds {
		if b.Source == source {
			return b.Target, nil
		}
	}
	// The place has to exist below the read-only bind of the private directory.
	place := fmt.Sprintf("directories/%d", len(s.Binds))
	if err := os.MkdirAll(filepath.Join(s.dir, place), 0o755); err != nil {
		return "", err
	}
	target := path.Join(Target, place)
	s.Binds = append(s.Binds, Bind{source, target})
	return target, nil
}
