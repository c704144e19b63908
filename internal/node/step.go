package node

import (
	"context"
	"io"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/build"
	"brisk.dev/brisk/internal/sandbox"
)

var _ build.Executor = (*Node)(nil)

// RunStep runs a step of an image build in a sandbox of its own, without limits
// but the machine's, and gives what it changed.
func (n *Node) RunStep(ctx context.Context, s build.Step) (_ build.Layer, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fault.New(fault.Timeout, "the step ran longer than %v", s.Timeout))
	defer cancel()
	id := newID("b")
	root, err := n.mounts.get(ctx, s.Workspace, s.Parent.Digest.String(), nil)
	if err != nil {
		return build.Layer{}, err
	}
	spec := sandbox.Spec{Args: s.Args, Env: s.Env, Cwd: root.workdir(s.Cwd), Upper: true}
	for _, b := range s.Binds {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: b.Source, Target: b.Target, ReadOnly: b.ReadOnly})
	}
	l := &stepLayer{root: root}
	defer func() {
		if l != nil {
			_ = l.Close()
		}
	}()
	if l.box, err = n.newBox(ctx, id, spec, false, nil, root); err != nil {
		return build.Layer{}, err
	}
	l.box.output.Attach(func(_ string, p []byte) { _, _ = s.Output.Write(p) })
	if err := l.box.create(ctx); err != nil {
		return build.Layer{}, err
	}
	if err := l.box.sandbox.Start(ctx); err != nil {
		return build.Layer{}, err
	}
	exit, err := l.box.sandbox.Wait(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return build.Layer{}, err
	}
	l.box.output.Drain()
	l.box.output.Attach(nil)
	out := build.Layer{ExitCode: exit.Code, OOMKilled: exit.OOMKilled}
	if exit.Code == 0 {
		l.export()
		out.Tar, l = l, nil
	}
	return out, nil
}

// stepLayer is the tar of what a step changed, read while it is written. Closing
// it ends the step's sandbox.
type stepLayer struct {
	box    *box
	root   *Rootfs
	tar    *io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

func (l *stepLayer) export() {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background()) // ends with Close, not with the step
	l.tar, l.cancel, l.done = r, cancel, make(chan struct{})
	go func() {
		defer close(l.done)
		w.CloseWithError(l.box.sandbox.Upper(ctx, w))
	}()
}

func (l *stepLayer) Read(p []byte) (int, error) { return l.tar.Read(p) }

func (l *stepLayer) Close() error {
	if l.tar != nil {
		l.cancel()
		_ = l.tar.Close()
		<-l.done
		l.tar = nil
	}
	if l.box != nil {
		l.box.destroy()
	}
	l.root.Release()
	return nil
}
