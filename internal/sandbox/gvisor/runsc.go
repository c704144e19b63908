package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
)

// ask runs runsc for what it prints.
func (r *Runtime) ask(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, r.options.Runsc, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fault.New(fault.Machine, "runsc %s: %w: %s", args[0], err, oneLine(errs.Bytes())).
			WithHint("Is %s a runsc for this machine? `make runsc` builds one.", r.options.Runsc)
	}
	return string(out), nil
}

// flags are runsc's global ones for one sandbox.
func (r *Runtime) flags(s sandbox.Spec) []string {
	bundle := r.bundleDir(s.ID)
	f := []string{
		"--root=" + r.stateDir(),
		"--platform=systrap",
		"--host-settings=ignore", // a check of sysctls that brings advice only
		"--log=" + filepath.Join(bundle, "runsc.log"), "--log-format=json",
		"--panic-log=" + filepath.Join(bundle, "panic.log"),
		// How long an exiting sentry waits for its clients. We are the only one,
		// and close when we have the exit status.
		"--control-rpc-stop-timeout=5s",
	}
	if s.Netns != "" {
		f = append(f, "--network=sandbox")
	} else {
		f = append(f, "--network=none")
	}
	if s.Upper {
		// The root is an overlay of the host's already. Shared: nothing is held
		// back in the sentry, so that what the processes have written is there
		// when they have ended, however they ended.
		f = append(f, "--overlay2=none", "--file-access=shared")
	} else {
		f = append(f, "--overlay2=root:memory")
	}
	for _, m := range s.Mounts {
		if m.Sockets {
			f = append(f, "--host-uds=open")
			break
		}
	}
	if r.options.Debug != "" {
		f = append(f, "--debug", "--debug-log="+filepath.Join(r.options.Debug, s.ID)+"/")
	}
	return f
}

// execCreate runs `runsc create`. Its standard streams become the sandbox's.
func (r *Runtime) execCreate(ctx context.Context, s sandbox.Spec) error {
	bundle := r.bundleDir(s.ID)
	args := append(r.flags(s), "create", "--bundle="+bundle, s.ID)
	cmd := exec.CommandContext(ctx, r.options.Runsc, args...)
	cmd.WaitDelay = time.Second
	// runsc needs no environment of ours, and passes it on to the sentry.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if s.Stdin != nil {
		cmd.Stdin = s.Stdin
	}
	if s.Stdout != nil {
		cmd.Stdout = s.Stdout
	}
	if s.Stderr != nil {
		cmd.Stderr = s.Stderr
	}
	// When the server dies, so does a half-done create, and cannot make
	// processes behind the back of the next server's Sweep. The kernel means the
	// death of the thread that forked: keep it until then.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fault.Wrap(ctx.Err(), "create", "sandbox "+s.ID)
	}
	return r.explain(s.ID, "create", err)
}

// explain makes one line of what runsc has logged about a failure.
func (r *Runtime) explain(id, op string, err error) error {
	if r.group(id).OOMKills() > 0 {
		return memoryTooSmall(id, op)
	}
	text := loggedError(filepath.Join(r.bundleDir(id), "runsc.log"))
	if text == "" {
		return fault.Wrap(err, op, "sandbox "+id)
	}
	return &fault.Error{Class: classify(text), Op: op, Object: "sandbox " + id, Err: fault.New(classify(text), "%s", text)}
}

func memoryTooSmall(id, op string) error {
	return fault.New(fault.Exhausted, "%s sandbox %s: its memory limit is too small even for the sandbox itself", op, id).
		WithHint("Raise the memory limit.")
}

// loggedError is the first error in runsc's log, a sequence of JSON objects from
// the gofer, the sentry and runsc itself: the later ones are consequences.
func loggedError(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for rest := b; len(rest) > 0; {
		i := bytes.IndexByte(rest, '{')
		if i < 0 {
			break
		}
		var line struct{ Msg, Level string }
		d := json.NewDecoder(bytes.NewReader(rest[i:]))
		if d.Decode(&line) != nil {
			rest = rest[i+1:]
			continue
		}
		if line.Level == "error" {
			return oneLine([]byte(line.Msg))
		}
		rest = rest[i+int(d.InputOffset()):]
	}
	return ""
}

var (
	noMemory  = regexp.MustCompile(`cannot allocate memory|out of memory|resource temporarily unavailable|newosproc`)
	noSpace   = regexp.MustCompile(`no space left|disk quota exceeded`)
	noFile    = regexp.MustCompile(`no such file or directory|executable file not found|not a directory`)
	badState  = regexp.MustCompile(`failed to load|decoding from|statefile|state file|unexpected eof|checkpoint`)
	noProgram = regexp.MustCompile(`error finding executable|failed to load /[^:]*: no such file or directory`)
	noImage   = regexp.MustCompile(`failed to load /[^:]*: (permission denied|exec format error|is a directory)`) // of a program
	badSpec   = regexp.MustCompile(`validate restore spec`)
	forbidden = regexp.MustCompile(`permission denied|operation not permitted`)
)

// classify finds the class of what runsc or a sentry said, which is text only.
func classify(text string) fault.Class {
	switch t := strings.ToLower(text); {
	case noProgram.MatchString(t):
		return fault.NotFound
	case badSpec.MatchString(t), noImage.MatchString(t):
		return fault.Invalid
	case noMemory.MatchString(t):
		return fault.Exhausted
	case noSpace.MatchString(t):
		return fault.DiskFull
	case badState.MatchString(t):
		return fault.Corrupt
	case noFile.MatchString(t):
		return fault.Invalid
	case forbidden.MatchString(t):
		return fault.Invalid
	}
	return fault.Internal
}
