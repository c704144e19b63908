// Package doctor says whether this machine can run Brisk, and what to do where it
// cannot.
//
// Check looks at one thing after another and gives a Result for each, in an order
// for people: what everything rests on first. It changes nothing that stays: it
// may load kernel modules that Brisk would load anyway, and tries namespaces and
// firewall rules out in a network namespace that is gone when it returns. It
// needs no server, and the longest it can take is the commands that it asks for
// their version, each of which has ten seconds.
//
// A check fails if Brisk's main job cannot work, and warns if something works
// less well or only a part of Brisk needs it. Every result that is not OK says
// what to do in its Fix. Err turns the failures into one error of class
// fault.Machine, which is exit code 6 on the command line.
package doctor

import (
	"context"
	"fmt"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// Status is what a check came to.
type Status string

// The statuses. OK includes things that are merely worth knowing.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Result is the outcome of one check: what was looked at, what was found, and
// what to do about it ("" when nothing is to be done).
type Result struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// Options says what Brisk would use on this machine.
type Options struct {
	DataDir string // where state is kept; it need not exist yet
	RunDir  string // where sockets and mounts are; it need not exist yet
	Runsc   string // path of the runsc to use; "" = none was found
	Store   Store
}

// Store is where images are kept.
type Store struct {
	Place string                          // a directory or a URL without secrets; "" = in DataDir
	Try   func(ctx context.Context) error // finds out whether it can be used; nil = it is not known where it is
	Err   error                           // why it is not known
}

// Check looks at the machine. It stops early, with fewer results, only when ctx
// ends.
func Check(ctx context.Context, o Options) []Result {
	return thisMachine().check(ctx, o)
}

// Err is nil if nothing failed, else an error of class fault.Machine that names
// what did, with the first fix as its hint.
func Err(results []Result) error {
	var failed []string
	var fix string
	for _, r := range results {
		if r.Status != Fail {
			continue
		}
		if fix == "" {
			fix = r.Fix
		}
		failed = append(failed, fmt.Sprintf("%s (%s)", r.Name, r.Detail))
	}
	if failed == nil {
		return nil
	}
	return fault.New(fault.Machine, "this machine lacks: %s", strings.Join(failed, ", ")).WithHint("%s", fix)
}

func (m *machine) check(ctx context.Context, o Options) []Result {
	checks := []func(context.Context, Options) Result{
		m.root, m.architecture, m.kernel, m.erofs, m.fuse, m.loop,
		m.cgroups, m.userNamespaces, m.networkNamespaces, m.firewall, m.forwarding, m.uplink,
		m.runsc, m.kvm, m.python, m.mmdebstrap,
		m.memory, m.dataDir, m.store, m.runDir,
	}
	var results []Result
	for _, c := range checks {
		if ctx.Err() != nil {
			break
		}
		results = append(results, c(ctx, o))
	}
	return results
}

func ok(name, format string, args ...any) Result {
	return Result{Name: name, Status: OK, Detail: fmt.Sprintf(format, args...)}
}

func warn(name, fix, format string, args ...any) Result {
	return Result{Name: name, Status: Warn, Detail: fmt.Sprintf(format, args...), Fix: fix}
}

func fail(name, fix, format string, args ...any) Result {
	return Result{Name: name, Status: Fail, Detail: fmt.Sprintf(format, args...), Fix: fix}
}
