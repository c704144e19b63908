package node

import (
	"context"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/trace"
)

// ContainerSpec is any command on any image.
type ContainerSpec struct {
	Workspace, Image string
	Args             []string // empty: the image's entrypoint and command
	Env              map[string]string
	Workdir, User    string
	Limits           sandbox.Limits
	BlockNetwork     bool
	Allow            []netip.Prefix
	Stdin            *os.File // may be nil
}

// Container is a running command.
type Container struct {
	ID    string
	Image *Rootfs
	box   *box
	quiet *time.Timer
}

// quietStart is when a command that prints nothing counts as started.
const quietStart = 5 * time.Second

// StartContainer starts a command; what it prints goes to sink.
func (n *Node) StartContainer(ctx context.Context, c ContainerSpec, sink Sink) (_ *Container, err error) {
	ctx, cancel := context.WithTimeout(ctx, prepareDeadline)
	defer cancel()
	k := &Container{ID: newID("c")}
	defer func() {
		if err != nil {
			k.Destroy()
		}
	}()
	if k.Image, err = n.mounts.get(ctx, c.Workspace, c.Image, commandEntry(c)); err != nil {
		return nil, err
	}
	args, err := command(k.Image.root.img.Config(), c.Args)
	if err != nil {
		return nil, err
	}
	user, err := k.Image.user(c.User)
	if err != nil {
		return nil, err
	}
	if c.Workdir != "" && k.Image.workdir(c.Workdir) != c.Workdir {
		return nil, fault.New(fault.Invalid, "there is no directory %s in the image", c.Workdir)
	}
	spec := sandbox.Spec{
		Args: args, Env: k.Image.env(user, c.Env), Cwd: k.Image.workdir(c.Workdir),
		UID: user.uid, GID: user.gid, Groups: user.groups, Limits: c.Limits, Stdin: c.Stdin,
	}
	if k.box, err = n.newBox(ctx, k.ID, spec, c.BlockNetwork, c.Allow, k.Image); err != nil {
		return nil, err
	}
	k.box.output.Attach(func(stream string, p []byte) {
		k.Image.Started()
		sink(stream, p)
	})
	if err := k.box.create(ctx); err != nil {
		return nil, err
	}
	end := trace.Begin(ctx, "start")
	k.Image.Go(false)
	if err := k.box.sandbox.Start(ctx); err != nil {
		return nil, k.box.blame(explainProgram(err, args[0]))
	}
	end("")
	k.quiet = time.AfterFunc(quietStart, k.Image.Started)
	return k, nil
}

// explainProgram turns the runtime's refusal to start a program into the user's terms.
func explainProgram(err error, program string) error {
	switch fault.ClassOf(err) {
	case fault.NotFound:
		return fault.New(fault.NotFound, "there is no program %s in the image", program)
	case fault.Invalid:
		return fault.New(fault.Invalid, "%s is no program that could be run in the image", program)
	}
	return err
}

func command(c image.Config, args []string) ([]string, error) {
	if len(args) == 0 {
		args = append(append([]string(nil), c.Entrypoint...), c.Cmd...)
	}
	if len(args) == 0 {
		return nil, fault.New(fault.Invalid, "the image names no command of its own").WithHint("Give one: brisk run --image NAME -- CMD ARGS")
	}
	return args, nil
}

// Wait returns when the command has ended and all its output is with the sink.
func (k *Container) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, err := k.box.sandbox.Wait(ctx)
	if err != nil {
		return exit, err
	}
	k.box.output.Drain()
	k.Image.Started()
	k.Image.Used()
	switch exit.Code {
	case 126, 127, 128 + int(unix.SIGBUS), 128 + int(unix.SIGSEGV): // what unreadable programs and libraries end with
		if err := k.box.blame(errUnreadable); err != errUnreadable {
			return exit, err
		}
	}
	return exit, nil
}

// errUnreadable is what blame replaces, if the image is to blame.
var errUnreadable error = fault.New(fault.Internal, "the program could not be read")

// Signal sends to the command.
func (k *Container) Signal(ctx context.Context, sig os.Signal) error {
	return k.box.sandbox.Signal(ctx, sig, true)
}

// Usage is what it uses now.
func (k *Container) Usage() (sandbox.Usage, error) { return k.box.sandbox.Usage() }

// Destroy ends the command if it still runs, and frees all that it holds.
func (k *Container) Destroy() {
	if k.quiet != nil {
		k.quiet.Stop()
	}
	if k.box != nil {
		k.box.destroy()
	}
	if k.Image != nil {
		k.Image.Release()
	}
}
