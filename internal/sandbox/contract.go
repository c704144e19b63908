package sandbox

import (
	"context"
	"io"
	"os"
	"time"
)

// Spec says what a sandbox is. All of it but ID, Rootfs, the Source of mounts, the
// path in Netns, the files behind the standard streams, Limits.CPU and
// Limits.Memory must be equal between a checkpoint and its restore: Shape digests
// exactly that part.
type Spec struct {
	ID       string   // unique on this machine; [a-z0-9-], at most 40 characters
	Rootfs   string   // host directory, a read-only mount; the sandbox writes to an overlay of its own
	Args     []string // argv of the first process; Args[0] is looked up in Env's PATH
	Env      []string // NAME=VALUE
	Cwd      string   //
	UID, GID uint32   // of the first process
	Groups   []uint32 // additional
	Hostname string   //
	Mounts   []Mount  // binds into the sandbox, in order; /proc, /sys, /dev and /tmp are always there
	Netns    string   // path of a network namespace whose interfaces the sandbox takes over; "" = loopback only
	Limits   Limits   //
	Upper    bool     // Upper will be asked for what the sandbox changed in its root
	Stdout   *os.File // host pipes (never regular files: the sandbox would write from offset 0); nil = /dev/null
	Stderr   *os.File //
	Stdin    *os.File //
}

// Mount is a bind of a host directory or file.
type Mount struct {
	Source, Target string
	ReadOnly       bool
	Sockets        bool // unix sockets in it may be dialled from inside
}

// Limits bind through cgroups (v1, v2 or hybrid). Zero means no limit.
type Limits struct {
	CPU    float64 // cores
	Memory int64   // bytes, the sandbox's own overhead included
	Pids   int64   // processes and threads inside
}

// Exit is how the first process ended.
type Exit struct {
	Code      int  // 0..255; 128+signal if a signal ended it
	OOMKilled bool // the memory limit was hit
}

// Runtime makes sandboxes of one kind. Safe for concurrent use. The conformance
// suite (sandboxtest) is the contract in executable form.
type Runtime interface {
	// Create prepares everything that can be prepared before it is known
	// whether the process starts or is restored. On an error nothing is left.
	Create(ctx context.Context, s Spec) (Sandbox, error)
	// Sweep destroys every sandbox that an earlier process left in this
	// runtime's state directory, with its cgroups and processes; returns their IDs.
	Sweep(ctx context.Context) ([]string, error)
	// Version identifies the build: a checkpoint restores only under the same one.
	Version() string
	// Features lists the CPU features that a checkpoint depends on, sorted.
	Features() []string
}

// Sandbox is one sandbox. Start or Restore is called at most once. Methods may
// be called from several goroutines.
type Sandbox interface {
	ID() string
	// Start runs the first process. NotFound: there is no such program in the root;
	// Invalid: it is none that could be run.
	Start(ctx context.Context) error
	// Restore starts from a checkpoint's directory. After an error the sandbox can only be destroyed.
	Restore(ctx context.Context, dir string) error
	// Checkpoint writes memory and state into dir, which must not exist and
	// appears only on success; the processes then end.
	Checkpoint(ctx context.Context, dir string) error
	// Wait returns when the first process has ended. It may be called again.
	Wait(ctx context.Context) (Exit, error)
	// Signal sends to the first process (all: to every process).
	Signal(ctx context.Context, sig os.Signal, all bool) error
	// Upper writes what changed in the root as a tar in overlayfs convention
	// (whiteout: character device 0:0; opaque directory: xattr trusted.overlay.opaque=y).
	Upper(ctx context.Context, w io.Writer) error
	// Usage reads the cgroup's counters.
	Usage() (Usage, error)
	// Destroy kills and removes all of it: processes, cgroup, state. It may be called again, and at any time.
	Destroy(ctx context.Context) error
}

// Usage is what a sandbox uses and has used.
type Usage struct {
	CPU       time.Duration
	Memory    int64 // bytes now
	MemoryMax int64 // bytes at most
}
