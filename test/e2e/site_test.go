package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is when a command or a wait counts as hanging. On an idle machine the
// longest takes some seconds.
const patience = 90 * time.Second

// site is one data directory with the server that belongs to it, as far as they
// can be reached from outside.
type site struct {
	data  string   // --data of all commands
	files string   // where the users' own files are
	env   []string // of all commands, beside this process's own
}

// newSite makes a site out of the seed, for one test. Variables (NAME=VALUE) are
// set for all its commands.
func newSite(t *testing.T, env ...string) *site {
	t.Helper()
	return newSiteAt(t, filepath.Join(t.TempDir(), "data"), env...)
}

func newSiteAt(t *testing.T, data string, env ...string) *site {
	t.Helper()
	s, err := settle(data, t.TempDir(), env...)
	require.NoError(t, err)
	t.Cleanup(func() { s.close(t) })
	return s
}

func settle(data, files string, env ...string) (*site, error) {
	if err := quietly("", "cp", "-a", "--reflink=auto", "--sparse=always", seedDir+"/.", data); err != nil {
		return nil, err
	}
	return &site{data: data, files: files, env: env}, nil
}

// close stops the server and makes sure that nothing of it is left.
func (s *site) close(t *testing.T) {
	t.Helper()
	if t.Failed() {
		s.dump(t)
	}
	r := s.brisk(t, "down")
	require.Equal(t, 0, r.code, "%s", r)
	require.Empty(t, s.census(t).all(), "left after `brisk down`")
}

// dump shows the end of the server's log, which explains most failures.
func (s *site) dump(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(s.data, "log", "server.log"))
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	t.Logf("the server's log ends with:\n%s", strings.Join(lines[max(0, len(lines)-25):], "\n"))
}

var sharing struct {
	once  sync.Once
	err   error
	files string
}

// shared is the site of all tests that need none of their own. Such a test uses
// names (of apps, of images) that no other uses, and leaves the server as it was.
func shared(t *testing.T) *site {
	t.Helper()
	sharing.once.Do(func() {
		if sharing.files, sharing.err = os.MkdirTemp("", "brisk-e2e-shared-"); sharing.err == nil {
			common, sharing.err = settle(filepath.Join(sharing.files, "data"), "")
		}
	})
	require.NoError(t, sharing.err)
	own := *common
	own.files = t.TempDir()
	return &own
}

// closeShared ends the shared site; it says what was left of it.
func closeShared() string {
	if common == nil {
		return ""
	}
	defer os.RemoveAll(sharing.files)
	cmd := common.command("down")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "brisk down: " + err.Error() + "\n" + string(out)
	}
	c, err := takeCensus(common)
	if err != nil {
		return err.Error()
	}
	if left := c.all(); len(left) > 0 {
		return "left after `brisk down`:\n" + strings.Join(left, "\n")
	}
	return ""
}

// result is how a command ended.
type result struct {
	line     string
	code     int
	out, err string
}

func (r result) String() string {
	return r.line + ": exit code " + strconv.Itoa(r.code) + "\n--- stdout\n" + r.out + "\n--- stderr\n" + r.err
}

func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command(briskBin, args...)
	cmd.Dir = s.files
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "BRISK_") || name == "BRISK_RUNSC" || name == "BRISK_COMPAT" {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(append(cmd.Env, "BRISK_DATA="+s.data), s.env...)
	// A test that is interrupted must not leave commands.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// brisk runs a command to its end.
func (s *site) brisk(t *testing.T, args ...string) result {
	t.Helper()
	return s.fed(t, "", args...)
}

// fed runs a command with some standard input.
func (s *site) fed(t *testing.T, input string, args ...string) result {
	t.Helper()
	p := s.launch(t, s.command(args...), strings.NewReader(input))
	return p.wait(t)
}

// ok runs a command that has to succeed, and gives its standard output.
func (s *site) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := s.brisk(t, args...)
	require.Equal(t, 0, r.code, "%s", r)
	return r.out
}

// fails runs a command that has to end with a code, and gives its standard error.
func (s *site) fails(t *testing.T, code int, args ...string) string {
	t.Helper()
	r := s.brisk(t, args...)
	require.Equal(t, code, r.code, "%s", r)
	return r.err
}

// ask runs a command with --json that has to succeed, and decodes its answer.
func (s *site) ask(t *testing.T, answer any, args ...string) {
	t.Helper()
	out := s.ok(t, append([]string{"--json"}, args...)...)
	require.NoError(t, json.Unmarshal([]byte(out), answer), "%s", out)
}

// complaint is an error as --json gives it.
type complaint struct {
	Class   string `json:"class"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// refused runs a command with --json that has to end with a code, and decodes its error.
func (s *site) refused(t *testing.T, code int, args ...string) complaint {
	t.Helper()
	r := s.brisk(t, append([]string{"--json"}, args...)...)
	require.Equal(t, code, r.code, "%s", r)
	var e struct {
		Error complaint `json:"error"`
	}
	lines := strings.Split(strings.TrimSpace(r.err), "\n") // those before tell of progress
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &e), "%s", r)
	return e.Error
}

// write makes a file of the user's and gives its path.
func (s *site) write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(s.files, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

// process is a command that runs beside the test.
type process struct {
	line  string
	cmd   *exec.Cmd
	lines chan string // of its standard output, as they come
	ended chan struct{}
	out   bytes.Buffer // whole; read after ended
	err   bytes.Buffer
}

// begin starts a command that runs beside the test; it is killed when the test ends.
func (s *site) begin(t *testing.T, args ...string) *process {
	t.Helper()
	return s.launch(t, s.command(args...), nil)
}

func (s *site) launch(t *testing.T, cmd *exec.Cmd, input io.Reader) *process {
	t.Helper()
	p := &process{line: "brisk " + strings.Join(cmd.Args[1:], " "), cmd: cmd, lines: make(chan string, 10_000), ended: make(chan struct{})}
	cmd.Stdin, cmd.Stderr = input, &p.err
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = w
	cmd.WaitDelay = patience
	require.NoError(t, cmd.Start())
	w.Close()
	go func() {
		defer close(p.ended)
		read := make(chan struct{})
		go func() {
			defer close(read)
			b := bufio.NewReader(io.TeeReader(r, &p.out))
			for {
				line, err := b.ReadString('\n')
				if line != "" {
					select {
					case p.lines <- strings.TrimSuffix(line, "\n"):
					default: // nobody looks
					}
				}
				if err != nil {
					return
				}
			}
		}()
		<-read
		_ = cmd.Wait()
		r.Close()
		close(p.lines)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// line waits for a line of standard output that has text in it.
func (p *process) waitLine(t *testing.T, text string) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				<-p.ended
				require.FailNow(t, "it ended before it said "+strconv.Quote(text), "%s", p.result())
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-deadline:
			require.FailNow(t, "it does not say "+strconv.Quote(text), p.line)
		}
	}
}

// wait waits for the command's end.
func (p *process) wait(t *testing.T) result {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // for the stacks
		select {
		case <-p.ended:
		case <-time.After(5 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		require.FailNow(t, "it hangs", "%s", p.result())
	}
	return p.result()
}

func (p *process) result() result {
	return result{line: p.line, code: p.cmd.ProcessState.ExitCode(), out: p.out.String(), err: p.err.String()}
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(sig))
}

// eventually waits until something holds that only shows from outside.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "it never came true: %s", what)
	}
}
