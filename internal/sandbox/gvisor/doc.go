// Package gvisor runs sandboxes with gVisor's runsc: a kernel in user space, so
// that no system call of the code inside reaches the host's.
//
// # What runs on the host
//
// A sandbox is two or more host processes in one control group: the sentry (the
// kernel), its gofer (opens files for it), and one process per address space
// inside, which systrap uses to run the code. They are children of a short-lived
// `runsc create`, so they belong to init afterwards and survive the server: Sweep
// finds those of an earlier server by their control groups.
//
// runsc itself is executed only to create. Everything after that goes over the
// sentry's control socket (control.go), because an exec of runsc costs 25 ms and
// more and a restore should not pay for it; destroying is a kill of the control
// group and the removal of files, because `runsc delete` polls ten times a second.
// The control protocol belongs to the very build that is pinned (make runsc), just
// as checkpoints do.
//
// # Where things are
//
//	DIR/runsc/            runsc's state root: one .state, one .lock and one socket each
//	DIR/bundles/ID/       config.json, logs, the merged root if the spec asks for Upper
//	SCRATCH/ID/           upper and work directory of such a root
//	CGROUPPARENT/ID       the control group
//
// # Limits
//
// Memory is that of the whole sandbox, page tables of the sentry and files in its
// memory overlay included. At the limit the kernel kills; the sandbox then ends
// with 137 and OOMKilled. CPU is a quota of the group; the code inside sees as many
// CPUs as the quota needs, but at least 2.
//
// Pids is a resource limit (RLIMIT_NPROC) that the sentry enforces: a fork too many
// fails inside with EAGAIN, as on Linux, for root inside too. It counts per user,
// and is saved in a checkpoint. A root that spreads its processes over many users
// gets past it, and then meets the second wall: the control group limits the host's
// tasks. When the sentry itself cannot make a thread it dies, and Wait returns an
// error of class Exhausted.
//
// # Who blocks whom
//
// Create takes about 100 ms of CPU, mostly exec and set-up of sentry and gofer.
// Start and Restore return when the first process is about to run. Checkpoint
// returns when the files are durable. Every method respects its context and has a
// deadline of its own besides; after an error in Start, Restore or Checkpoint only
// Wait and Destroy are of use. No lock is held over a call into the sentry, so that
// Destroy can always get through.
package gvisor
