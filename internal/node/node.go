// Package node is one machine's agent: it turns a placement into a running
// instance. It mounts the image, takes a network, creates the sandbox, starts it
// or restores a snapshot into it, and then speaks with the runner inside.
//
// A node decides nothing: when there should be an instance, which snapshot is
// used and what a call's failure means for others is the scheduler's business.
//
// # What it promises
//
// Whatever fails or is cancelled, an instance's Destroy frees all that it held:
// processes, cgroup, mounts, network, directory. Open sweeps what a node that was
// killed has left in the same run directory; a run directory has one node.
//
// # Who may block whom
//
// Prepare, Start and Restore block on the machine and on user code, each with a
// deadline. Instances never block each other; the first use of an image waits for
// its metadata to be local.
package node

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/sandbox/network"
)

// Images finds images.
type Images interface {
	Get(ctx context.Context, ref image.Ref) (*image.Image, error)
	FreeNative(cache image.Slab) (freed int)
}

// Filesystem mounts images.
type Filesystem interface {
	Mount(ctx context.Context, img lazyfs.Image) (*lazyfs.Mount, error)
}

// Network hands out network namespaces.
type Network interface {
	Get(ctx context.Context, p network.Policy) (*network.Slot, error)
}

// CodeDirs gives a function's unpacked code.
type CodeDirs interface {
	Dir(workspace, id string) (string, error)
}

// Options are a node's parts and places.
type Options struct {
	ID      string // of the node, in records
	Run     string // the server's run directory; instances/ below it is the node's
	SDK     string // host directory with the Python package brisk
	Images  Images
	FS      Filesystem
	Runtime sandbox.Runtime
	Network Network
	Code    CodeDirs
	Blobs   function.Blobs
	Log     *slog.Logger

	Slab      Slab            // nil: images are mounted lazily only
	Profiles  *image.Profiles // nil: what starts read is not learnt, and not fetched ahead
	Fill      bool            // fetch what is missing of an image when something has started on it
	IdleMount time.Duration   // how long an image that nobody uses stays mounted; 0 = 10 minutes
}

// Node is one machine's agent.
type Node struct {
	opt    Options
	mounts *mounts
}

// Open sweeps the leftovers of an earlier node and returns a node that is ready.
func Open(ctx context.Context, opt Options) (*Node, error) {
	n := &Node{opt: opt}
	dir := filepath.Join(opt.Run, "instances")
	swept, err := opt.Runtime.Sweep(ctx)
	if err != nil {
		return nil, fault.Wrap(err, "sweep", "sandboxes of an earlier server")
	}
	if len(swept) > 0 {
		opt.Log.Info("destroyed what an earlier server left running", "sandboxes", swept)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, fault.Wrap(err, "sweep", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "make", dir)
	}
	n.mounts = newMounts(opt) // now that what ran on the images is gone
	return n, nil
}

// ID names the node.
func (n *Node) ID() string { return n.opt.ID }

// Close gives the mounted images back. All instances must have been destroyed.
func (n *Node) Close() { n.mounts.close() }

// InUse reports whether an instance runs on the image.
func (n *Node) InUse(digest string) bool { return n.mounts.inUse(digest) }

// Unmount lets go of an image that is about to be removed.
func (n *Node) Unmount(digest string) { n.mounts.forget(digest) }

// pickle loads a serialized function, or nothing.
func (n *Node) pickle(f *function.Function) ([]byte, error) {
	if !f.Serialized {
		return nil, nil
	}
	r, err := n.opt.Blobs.Open(f.Workspace, f.Pickle)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	const limit = 512 << 20
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fault.Wrap(err, "read the pickle of", f.Name)
	}
	if len(b) > limit {
		return nil, fault.New(fault.Invalid, "the pickle of function %s is larger than %d MiB", f.Name, limit>>20)
	}
	return b, nil
}
