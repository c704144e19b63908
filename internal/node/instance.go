package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/node/channel"
	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/snapshot"
	"brisk.dev/brisk/internal/trace"
)

// Deadlines of steps that have none of the user's. Each is some fifty times what
// the step takes on a loaded machine.
const (
	prepareDeadline    = 60 * time.Second
	restoreDeadline    = 30 * time.Second
	parkDeadline       = 20 * time.Second
	checkpointDeadline = 5 * time.Minute // writes all of the memory to disk
	destroyDeadline    = 30 * time.Second
	exitDeadline       = 5 * time.Second // to learn how a process that is gone ended
)

// Instance is one sandbox with a runner for one function. Its life:
//
//	Prepare -> Start   -> Call, Call, ... -> Destroy
//	        -> Restore -> Call, Call, ... -> Destroy
//	        -> Start   -> Checkpoint      -> Destroy
//
// After an error of any of them it can only be destroyed. Its methods are for
// one goroutine at a time, but for Destroy, which ends whatever goes on.
type Instance struct {
	ID       string
	Function *function.Function
	Image    *Rootfs

	node     *Node
	box      *box
	key      snapshot.Key
	listener *channel.Listener
	conn     atomic.Pointer[channel.Conn] // Destroy interrupts it from outside
}

// Reply is what a call gave: a result, or an exception if Exception is set.
type Reply struct {
	Payload   []byte
	Exception *channel.Exception
	MS        float64 // in the runner
}

// Prepare makes everything of an instance that can be made before it is known
// whether its process starts or is restored: mount, network, sandbox.
func (n *Node) Prepare(ctx context.Context, f *function.Function) (_ *Instance, err error) {
	ctx, cancel := context.WithTimeout(ctx, prepareDeadline)
	defer cancel()
	i := &Instance{ID: newID("i"), Function: f, node: n}
	defer func() {
		if err != nil {
			i.Destroy()
		}
	}()
	spec, err := n.functionSpec(ctx, i)
	if err != nil {
		return nil, err
	}
	i.box, err = n.newBox(ctx, i.ID, spec, f.Spec.BlockNetwork, mustNetworks(f), i.Image)
	if err != nil {
		return nil, err
	}
	if i.listener, err = channel.Listen(filepath.Join(i.box.shared, "runner.sock")); err != nil {
		return nil, err
	}
	if err := i.box.create(ctx); err != nil {
		return nil, err
	}
	i.key = snapshot.Key{
		Workspace: f.Workspace, Function: f.Digest(), Image: f.Image, Shape: sandbox.Shape(i.box.spec),
		Runtime: n.opt.Runtime.Version(), Features: n.opt.Runtime.Features(),
	}
	return i, nil
}

// Name is the instance's ID.
func (i *Instance) Name() string { return i.ID }

// Reads counts what has been read of the image so far, by all who use it, and gives its size in bytes.
func (i *Instance) Reads() (image.BlockStats, int64) { return i.Image.Stats(), i.Image.Size() }

// Key is what a snapshot must match to be restored into the instance.
func (i *Instance) Key() snapshot.Key { return i.key }

// LoadError is the user's module failing to import, or the function not being in it.
type LoadError struct {
	Exception *channel.Exception
	Output    string // the last of what was printed
}

func (e *LoadError) Error() string {
	return fmt.Sprintf("the function does not load: %s: %s", e.Exception.Type, e.Exception.Message)
}

// Start runs the runner and has it import the user's module. A module that does
// not import is a *LoadError. The function's startup_timeout bounds it.
func (i *Instance) Start(ctx context.Context, sink Sink) (err error) {
	defer func() { err = i.box.blame(err) }()
	timeout := function.Seconds(i.Function.Spec.StartupTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fault.New(fault.Timeout, "the function did not load within its startup_timeout of %v s", i.Function.Spec.StartupTimeout))
	defer cancel()
	i.box.output.Attach(sink)
	defer i.box.output.Attach(nil)

	end := trace.Begin(ctx, "start python")
	i.Image.Go(false)
	if err := i.box.sandbox.Start(ctx); err != nil {
		return i.explainStart(err)
	}
	if err := i.connect(ctx, "start", 0); err != nil {
		return err
	}
	end("")
	end = trace.Begin(ctx, "import")
	load := channel.Load{
		Module: i.Function.Module, Qualname: i.Function.Qualname, Serialized: i.Function.Serialized,
		Env: i.env(), Identity: i.identity(),
	}
	pickle, err := i.node.pickle(i.Function)
	if err != nil {
		return err
	}
	m, err := i.exchange(ctx, load, pickle)
	if err != nil {
		return err
	}
	i.box.output.Drain()
	switch m.Type {
	case "loaded":
		end("")
		i.Image.Started()
		return nil
	case "load_failed":
		if m.Error == nil {
			return fault.New(fault.Corrupt, "runner: load_failed without an error")
		}
		return &LoadError{Exception: m.Error, Output: i.box.output.Tail()}
	}
	return fault.New(fault.Corrupt, "runner: %q after load", m.Type)
}

// explainStart turns the runtime's refusal to start python3 into the user's terms.
func (i *Instance) explainStart(err error) error {
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.Invalid, "image %s has no python3 in its PATH", i.Function.Image.Short()).
			WithHint("Functions need Python in their image: use brisk.Image.debian_slim(), or add it with apt_install(\"python3\").")
	}
	return err
}

// Restore brings the instance to life from a snapshot, to where it takes calls.
func (i *Instance) Restore(ctx context.Context, s *snapshot.Snapshot) error {
	ctx, cancel := context.WithTimeoutCause(ctx, restoreDeadline, fault.New(fault.Timeout, "the restored process did not answer within %v", restoreDeadline))
	defer cancel()
	end := trace.Begin(ctx, "restore")
	i.Image.Go(true)
	if err := i.box.sandbox.Restore(ctx, s.Dir); err != nil {
		return err
	}
	end("")
	end = trace.Begin(ctx, "connect")
	if err := i.connect(ctx, "restored", time.Second); err != nil {
		return err
	}
	var seed [32]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return fault.Wrap(err, "draw", "a seed")
	}
	deadline, _ := ctx.Deadline()
	err := i.conn.Load().Send(channel.Resume{Env: i.env(), Identity: i.identity(), Seed: hex.EncodeToString(seed[:]), TimeNS: time.Now().UnixNano()}, nil, deadline)
	if err != nil {
		return fault.Wrap(err, "resume", i.ID)
	}
	end("")
	i.Image.Started()
	return nil
}

// connect takes the runner's connection. While it waits it also watches, after
// grace, for the process to end: asking costs a restore some milliseconds.
func (i *Instance) connect(ctx context.Context, phase string, grace time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(grace, func() {
		if exit, err := i.box.sandbox.Wait(ctx); err == nil {
			cancel(i.box.explainExit(exit))
		}
	})
	defer watch.Stop()
	conn, hello, err := i.listener.Accept(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fault.Wrap(err, "wait for the runner of", i.ID)
	}
	i.conn.Store(conn)
	_ = i.listener.Close() // one runner, one connection; and a checkpoint must find nobody answering
	if hello.Phase != phase {
		return fault.New(fault.Corrupt, "runner: phase %q, want %q", hello.Phase, phase)
	}
	return nil
}

// exchange sends one message and reads the answer, until ctx ends.
func (i *Instance) exchange(ctx context.Context, m any, payload []byte) (channel.Message, error) {
	conn := i.conn.Load()
	stop := context.AfterFunc(ctx, conn.Interrupt)
	defer stop()
	deadline, _ := ctx.Deadline()
	err := conn.Send(m, payload, deadline)
	var reply channel.Message
	if err == nil {
		reply, err = conn.Receive(deadline)
	}
	switch {
	case err == nil:
		return reply, nil
	case ctx.Err() != nil:
		return reply, context.Cause(ctx)
	case conn.Interrupted(): // the error is that of whatever ended first
		return reply, fault.New(fault.Unavailable, "the instance was destroyed during the call")
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The connection's deadline may fire a moment before the context's.
		<-ctx.Done()
		return reply, context.Cause(ctx)
	case fault.Is(err, fault.Corrupt), fault.Is(err, fault.Exhausted):
		return reply, err
	}
	return reply, i.gone(err)
}

// gone explains a connection that broke: the process has ended, or is ending.
func (i *Instance) gone(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), exitDeadline)
	defer cancel()
	exit, werr := i.box.sandbox.Wait(ctx)
	switch {
	case ctx.Err() != nil:
		return fault.New(fault.Interrupted, "the connection to the function's process broke: %v", err)
	case fault.Is(werr, fault.Exhausted):
		return werr
	case werr != nil:
		return fault.New(fault.Interrupted, "the call was cut short: %w", werr)
	}
	i.box.output.Drain()
	return i.box.blame(i.box.explainExit(exit))
}

// Alive reports whether the instance can be given a call.
func (i *Instance) Alive() bool {
	conn := i.conn.Load()
	return conn != nil && conn.Alive()
}

// Call runs one call. Whatever the sandbox prints until it answers goes to sink.
// The errors are those of the call, of package fault: Timeout, Cancelled (ctx),
// Exhausted (memory), UserCode (the process exited), Corrupt (a runner that
// breaks the protocol).
func (i *Instance) Call(ctx context.Context, id string, input []byte, sink Sink) (Reply, error) {
	timeout := function.Seconds(i.Function.Spec.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fault.New(fault.Timeout, "the call ran longer than its timeout of %v s", i.Function.Spec.Timeout).
		WithHint("Give the function more time with timeout=SECONDS, or find out where it waits."))
	defer cancel()
	i.box.output.Attach(sink)
	m, err := i.exchange(ctx, channel.Call{ID: id, DeadlineMS: float64(timeout.Milliseconds())}, input)
	if err != nil {
		i.box.output.Attach(nil)
		return Reply{}, err
	}
	i.box.output.Drain()
	i.box.output.Attach(nil)
	i.Image.Used()
	switch {
	case m.Type != "result" && m.Type != "exception", m.ID != id, m.Type == "exception" && m.Error == nil:
		return Reply{}, fault.New(fault.Corrupt, "runner: message %q for call %q in answer to %s", m.Type, m.ID, id)
	case m.Type == "exception":
		return Reply{Payload: m.Payload, Exception: m.Error, MS: m.MS}, nil
	}
	return Reply{Payload: m.Payload, MS: m.MS}, nil
}

// Checkpoint parks the runner and writes the instance's memory into dir. It ends
// the process.
func (i *Instance) Checkpoint(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, checkpointDeadline)
	defer cancel()
	conn := i.conn.Load()
	if err := conn.Send(channel.Park{}, nil, time.Now().Add(parkDeadline)); err != nil {
		return fault.Wrap(err, "park", i.ID)
	}
	// The runner answers by closing: no connection may be open in a checkpoint.
	if m, err := conn.Receive(time.Now().Add(parkDeadline)); err == nil {
		return fault.New(fault.Corrupt, "runner: %q in answer to park", m.Type)
	} else if !errors.Is(err, io.EOF) {
		return fault.Wrap(err, "park", i.ID)
	}
	_ = conn.Close()
	i.conn.Store(nil)
	i.box.output.Drain()
	return i.box.sandbox.Checkpoint(ctx, dir)
}

// Usage is what the sandbox uses now.
func (i *Instance) Usage() (sandbox.Usage, error) { return i.box.sandbox.Usage() }

// Destroy ends the instance and frees all that it holds. It may be called again.
func (i *Instance) Destroy() {
	if conn := i.conn.Load(); conn != nil {
		conn.Interrupt()
	}
	if i.listener != nil {
		_ = i.listener.Close()
	}
	if i.box != nil {
		i.box.destroy()
	}
	if conn := i.conn.Load(); conn != nil {
		_ = conn.Close()
	}
	if i.Image != nil {
		i.Image.Release()
	}
}

func (i *Instance) identity() channel.Identity {
	return channel.Identity{Instance: i.ID, Workspace: i.Function.Workspace, App: i.Function.App, Function: i.Function.Name, Node: i.node.opt.ID}
}

// env is the whole environment that user code sees.
func (i *Instance) env() map[string]string {
	env := map[string]string{}
	for _, kv := range i.box.spec.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	id := i.identity()
	env["BRISK_INSTANCE_ID"], env["BRISK_NODE"] = id.Instance, id.Node
	env["BRISK_WORKSPACE"], env["BRISK_APP"], env["BRISK_FUNCTION"] = id.Workspace, id.App, id.Function
	return env
}

// newID makes a name that is unique on the machine: a kind and 60 random bits.
func newID(kind string) string {
	const digits = "0123456789abcdefghjkmnpqrstvwxyz"
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	for i := range b {
		b[i] = digits[b[i]&31]
	}
	return kind + "-" + string(b[:])
}
