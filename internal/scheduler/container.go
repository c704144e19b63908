package scheduler

import (
	"context"
	"os"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/sandbox"
)

// container is a running command, as `brisk ps` shows it.
type container struct{ record InstanceRecord }

// RunContainer runs a command to its end. What it prints goes to sink; cancelling
// ctx kills it. stdin may be nil.
func (s *Scheduler) RunContainer(ctx context.Context, r ContainerRequest, stdin *os.File, sink Sink) (ContainerExit, error) {
	spec, err := containerSpec(r)
	if err != nil {
		return ContainerExit{}, err
	}
	spec.Stdin = stdin
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, function.Seconds(r.Timeout), fault.New(fault.Timeout, "the container ran longer than its timeout of %v s", r.Timeout))
		defer cancel()
	}
	if !s.enter() {
		return ContainerExit{}, fault.New(fault.Unavailable, "the server is shutting down")
	}
	defer s.work.Done() // last of all: Close waits until nothing of the container is left
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(fault.New(fault.Unavailable, "the server is shutting down")) })()

	gone := false
	c, err := s.opt.Node.StartContainer(ctx, spec, func(stream string, p []byte) {
		if !gone && sink.Log(stream, p) != nil {
			gone = true
			cancel(errCallerGone)
		}
	})
	if err != nil {
		return ContainerExit{}, causeOf(ctx, err)
	}
	s.listContainer(c.ID, r, spec.Limits.Memory)
	defer s.unlistContainer(c.ID)
	defer c.Destroy() // before it leaves the list: what is not listed holds nothing
	if err := sink.Accepted(c.ID); err != nil {
		return ContainerExit{}, errCallerGone
	}
	exit, err := c.Wait(ctx)
	if err != nil {
		return ContainerExit{}, causeOf(ctx, err)
	}
	s.tallies.add(&s.tallies.finished)
	return ContainerExit{Code: exit.Code, OOM: exit.OOMKilled}, nil
}

// causeOf prefers why a context ended over what that made of an operation.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// containerSpec checks a request; what it leaves out is as for functions, but for
// the timeout: a command may run for ever.
func containerSpec(r ContainerRequest) (node.ContainerSpec, error) {
	limits := function.Spec{CPU: r.CPU, Memory: r.Memory, Pids: r.Pids, BlockNetwork: r.BlockNetwork, AllowNetworks: r.AllowNetworks, User: r.User, Env: map[string]string{}}
	for _, kv := range r.Env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return node.ContainerSpec{}, fault.New(fault.Invalid, "env %q: want NAME=VALUE", kv)
		}
		limits.Env[k] = v
	}
	limits.EnsureDefaults()
	if err := limits.Validate(); err != nil {
		return node.ContainerSpec{}, err
	}
	if r.Workdir != "" && !strings.HasPrefix(r.Workdir, "/") {
		return node.ContainerSpec{}, fault.New(fault.Invalid, "workdir %q: want an absolute path", r.Workdir)
	}
	allow, err := limits.Networks()
	if err != nil {
		return node.ContainerSpec{}, err
	}
	return node.ContainerSpec{
		Workspace: r.Workspace, Image: r.Image, Args: r.Args, Env: limits.Env, Workdir: r.Workdir, User: r.User,
		Limits:       sandbox.Limits{CPU: limits.CPU, Memory: limits.Memory << 20, Pids: limits.Pids},
		BlockNetwork: r.BlockNetwork, Allow: allow,
	}, nil
}

// enter counts the caller among what Close waits for, until s.work.Done; false when closing.
func (s *Scheduler) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return false
	}
	s.work.Add(1)
	return true
}

func (s *Scheduler) listContainer(id string, r ContainerRequest, memory int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.containers[id] = &container{record: InstanceRecord{
		ID: id, Workspace: r.Workspace, Node: s.opt.Node.ID(), Image: r.Image, State: "busy", Start: "container", Since: now(), MemoryMax: memory,
	}}
}

func (s *Scheduler) unlistContainer(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.containers, id)
}
