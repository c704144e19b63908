package node

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/sandbox/network"
	"brisk.dev/brisk/internal/trace"
)

// Where things are inside every sandbox (docs/design/architecture.md).
const (
	sharedTarget = "/run/brisk"
	sdkTarget    = "/opt/brisk/sdk"
	codeTarget   = "/opt/brisk/code"
)

// box is a sandbox with what it takes around it: a directory, output pipes and a
// network. Instances, containers and build steps are boxes with different specs.
type box struct {
	node    *Node
	dir     string // RUN/instances/ID
	shared  string // dir/run: bound to /run/brisk
	spec    sandbox.Spec
	output  *output
	slot    *network.Slot
	sandbox sandbox.Sandbox
	root    *Rootfs
	before  *error // the image's last failure when the box was made
	once    sync.Once
}

// newBox takes a network and makes the directory and the pipes; create makes the
// sandbox. On an error the caller calls destroy.
func (n *Node) newBox(ctx context.Context, id string, spec sandbox.Spec, blockNetwork bool, allow []netip.Prefix, root *Rootfs) (*box, error) {
	b := &box{root: root, before: root.failure(), node: n, dir: filepath.Join(n.opt.Run, "instances", id), spec: spec}
	b.shared = filepath.Join(b.dir, "run")
	if err := b.fill(ctx, blockNetwork, allow); err != nil {
		b.destroy()
		return nil, err
	}
	b.spec.ID, b.spec.Rootfs = id, root.Path
	b.spec.Hostname = "brisk"
	b.spec.Stdout, b.spec.Stderr = b.output.ends()
	return b, nil
}

func (b *box) fill(ctx context.Context, blockNetwork bool, allow []netip.Prefix) (err error) {
	if err := os.MkdirAll(b.shared, 0o755); err != nil {
		return fault.Wrap(err, "make the directory of", filepath.Base(b.dir))
	}
	if b.output, err = newOutput(); err != nil {
		return err
	}
	hosts := filepath.Join(b.dir, "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost brisk\n::1 localhost\n"), 0o644); err != nil {
		return fault.Wrap(err, "write", hosts)
	}
	b.spec.Mounts = append([]sandbox.Mount{
		{Source: b.shared, Target: sharedTarget, ReadOnly: true, Sockets: true},
		{Source: hosts, Target: "/etc/hosts", ReadOnly: true},
	}, b.spec.Mounts...)
	if blockNetwork {
		return nil
	}
	end := trace.Begin(ctx, "network")
	if b.slot, err = b.node.opt.Network.Get(ctx, network.Policy{Allow: allow}); err != nil {
		return err
	}
	end("")
	resolv := filepath.Join(b.dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte(b.slot.ResolvConf()), 0o644); err != nil {
		return fault.Wrap(err, "write", resolv)
	}
	b.spec.Netns = b.slot.Path
	b.spec.Mounts = append(b.spec.Mounts, sandbox.Mount{Source: resolv, Target: "/etc/resolv.conf", ReadOnly: true})
	return nil
}

func (b *box) create(ctx context.Context) (err error) {
	end := trace.Begin(ctx, "create sandbox")
	b.sandbox, err = b.node.opt.Runtime.Create(ctx, b.spec)
	b.output.closeEnds()
	if err != nil {
		return err
	}
	end("")
	return nil
}

// explainExit says in the user's terms why the first process is gone.
func (b *box) explainExit(exit sandbox.Exit) error {
	switch {
	case exit.OOMKilled:
		return fault.New(fault.Exhausted, "killed: it used more than its memory of %d MiB", b.spec.Limits.Memory>>20).
			WithHint("Give it more with memory=MIB.")
	case exit.Code > 128:
		return fault.New(fault.UserCode, "the process was ended by signal %d", exit.Code-128)
	}
	return fault.New(fault.UserCode, "the process exited with code %d", exit.Code)
}

// blame gives the error of reading the image, if that failed since the box was
// made, in place of what came of it: a program that cannot read its files may end
// in any way.
func (b *box) blame(err error) error {
	if b == nil || err == nil {
		return err
	}
	f := b.root.failure()
	if f == nil || f == b.before {
		return err
	}
	return fault.Wrap(*f, "read image", b.root.root.img.Digest.Short())
}

// destroy frees all that the box holds, once.
func (b *box) destroy() {
	b.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), destroyDeadline)
		defer cancel()
		if b.sandbox != nil {
			if err := b.sandbox.Destroy(ctx); err != nil {
				b.node.opt.Log.Error("a sandbox could not be destroyed; the next start of the server sweeps it", "instance", b.spec.ID, "error", err)
			}
		}
		if b.output != nil {
			b.output.Close()
		}
		if b.slot != nil {
			b.slot.Release()
		}
		if err := os.RemoveAll(b.dir); err != nil {
			b.node.opt.Log.Warn("a directory could not be removed", "dir", b.dir, "error", err)
		}
	})
}

// functionSpec is the sandbox of a function's instance, and mounts its image.
func (n *Node) functionSpec(ctx context.Context, i *Instance) (sandbox.Spec, error) {
	f := i.Function
	var err error
	code, err := n.opt.Code.Dir(f.Workspace, f.Code)
	if err != nil {
		return sandbox.Spec{}, err
	}
	if i.Image, err = n.mounts.get(ctx, f.Workspace, f.Image.String(), functionEntry(f, code, n.opt.SDK)); err != nil {
		return sandbox.Spec{}, err
	}
	user, err := i.Image.user(f.Spec.User)
	if err != nil {
		return sandbox.Spec{}, err
	}
	return sandbox.Spec{
		// By its path: with -m, a file of the user's in the working directory could take its place.
		Args: []string{"python3", sdkTarget + "/brisk/_runner.py"},
		Env:  i.Image.env(user, f.Spec.Env, "PYTHONPATH="+sdkTarget, "PYTHONDONTWRITEBYTECODE=1"),
		Cwd:  i.Image.workdir(""),
		UID:  user.uid, GID: user.gid, Groups: user.groups,
		Mounts: []sandbox.Mount{
			{Source: n.opt.SDK, Target: sdkTarget, ReadOnly: true},
			{Source: code, Target: codeTarget, ReadOnly: true},
		},
		Limits: sandbox.Limits{CPU: f.Spec.CPU, Memory: f.Spec.Memory << 20, Pids: f.Spec.Pids},
	}, nil
}

// mustNetworks is for definitions, which were validated when they were registered.
func mustNetworks(f *function.Function) []netip.Prefix {
	p, err := f.Spec.Networks()
	if err != nil {
		panic(fmt.Sprintf("node: function %s was not validated: %v", f.Name, err))
	}
	return p
}
