package doctor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// commandTimeout bounds each command that is asked something.
const commandTimeout = 10 * time.Second

// machine is what the checks may ask. The files below at are real; the rest are
// fields so that tests can be another machine.
type machine struct {
	at         string // "/", or a test's directory
	uid        int
	arch       string
	command    func(ctx context.Context, name string, args ...string) (string, error)
	lookPath   func(name string) (string, error)
	free       func(dir string) (int64, error)
	isTmpfs    func(dir string) bool
	network    func() error             // tries a namespace with a veth pair
	nat        func() error             // tries masquerading in a namespace
	dropChains func() ([]string, error) // chains of the host that drop what is forwarded
}

func thisMachine() *machine {
	return &machine{
		at:         "/",
		uid:        os.Geteuid(),
		arch:       runtime.GOARCH,
		command:    command,
		lookPath:   exec.LookPath,
		free:       free,
		isTmpfs:    isTmpfs,
		network:    tryNetwork,
		nat:        tryNAT,
		dropChains: dropChains,
	}
}

// command runs a program and gives what it printed; an error includes it.
func command(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil && text != "" {
		line, _, _ := strings.Cut(text, "\n")
		err = errors.Join(err, errors.New(line))
	}
	return text, err
}

// free is the number of bytes that an unprivileged process could still write.
func free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func isTmpfs(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// path is where a file of the machine is.
func (m *machine) path(name string) string { return filepath.Join(m.at, name) }

// read gives a file's content without the space around it, or "".
func (m *machine) read(name string) string {
	b, err := os.ReadFile(m.path(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (m *machine) exists(name string) bool {
	_, err := os.Stat(m.path(name))
	return err == nil
}

func (m *machine) writable(name string) bool {
	return unix.Access(m.path(name), unix.W_OK) == nil
}

// existing is the nearest of dir and its parents that is there.
func (m *machine) existing(dir string) string {
	for dir != "/" && dir != "." && !m.exists(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}
