// Package scheduler decides which instance a call runs on, when there should be
// more instances and when fewer, and keeps the record of every call.
//
// Glossary: a function has a pool. A pool has instances (started, each with one
// call at a time), created sandboxes (made beforehand: a restore then skips the
// making), and waiters: calls that found no idle instance, first come first
// served. Whatever becomes free, a fresh instance or one whose call has ended,
// goes to the first waiter; a call never waits for "its" cold start.
//
// How an instance starts, in the order tried: restore of the function's snapshot,
// into a created sandbox if there is one; a clean cold start, if there is no
// usable snapshot or restoring fails. The first cold start of a function also
// starts a second instance in the background, which loads the same module, sees
// no call, and becomes the snapshot.
//
// # What it promises
//
// Exactly one outcome for every call, whatever ends: the instance, the caller,
// the server. Nothing is run twice. What a call printed, how it ended and where
// its milliseconds went can be read afterwards (Calls, CallByID, Logs) until 2,000
// later calls have pushed it out; a call that was running when the server died
// is found as interrupted.
//
// # Who may block whom
//
// Call blocks on an instance of its own function only. Starts run on their own
// goroutines under the server's context: a caller who gives up leaves a start
// going, and the instance becomes idle. A pool's lock is never held while waiting
// for a sandbox. Lock order: pool.mu, then Scheduler.mu.
package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/snapshot"
	"brisk.dev/brisk/internal/store"
)

// Node is a machine's agent, as the scheduler needs it; *node.Node through OnNode.
type Node interface {
	ID() string
	Prepare(ctx context.Context, f *function.Function) (Instance, error)
	StartContainer(ctx context.Context, c node.ContainerSpec, sink node.Sink) (*node.Container, error)
}

// Instance is one sandbox with a runner; see node.Instance for the contract.
type Instance interface {
	Name() string
	Key() snapshot.Key
	Start(ctx context.Context, sink node.Sink) error
	Restore(ctx context.Context, s *snapshot.Snapshot) error
	Checkpoint(ctx context.Context, dir string) error
	Alive() bool
	Call(ctx context.Context, id string, input []byte, sink node.Sink) (node.Reply, error)
	Reads() (image.BlockStats, int64)
	Destroy()
}

// OnNode makes a node.Node a Node.
func OnNode(n *node.Node) Node { return onNode{n} }

type onNode struct{ *node.Node }

func (n onNode) Prepare(ctx context.Context, f *function.Function) (Instance, error) {
	i, err := n.Node.Prepare(ctx, f)
	if err != nil {
		return nil, err // not a nil *node.Instance in an interface
	}
	return i, nil
}

// Options are a scheduler's parts and settings.
type Options struct {
	Dir       string // functions/ and calls/ are below it
	Node      Node
	Snapshots *snapshot.Snapshots
	SDK       store.Digest // of SDK and runner: part of every function
	Created   int          // sandboxes created beforehand for a function with a snapshot
	Log       *slog.Logger
}

// Scheduler is the functions of one server.
type Scheduler struct {
	opt     Options
	ctx     context.Context // of everything that outlives a call
	stop    context.CancelFunc
	work    sync.WaitGroup // starts, snapshots, refills
	making  chan struct{}  // holds a token while a snapshot is made: one at a time
	journal *journal
	tallies *tallies
	mu      struct {
		sync.Mutex
		closed     bool
		pools      map[store.Digest]*pool
		current    map[string]store.Digest // workspace/app/name to the newest definition
		containers map[string]*container
	}
}

// Open reads the records of earlier servers and returns a scheduler.
func Open(opt Options) (*Scheduler, error) {
	if err := os.MkdirAll(filepath.Join(opt.Dir, "functions"), 0o700); err != nil {
		return nil, fault.Wrap(err, "open functions in", opt.Dir)
	}
	j, err := openJournal(filepath.Join(opt.Dir, "calls"), opt.Log)
	if err != nil {
		return nil, err
	}
	s := &Scheduler{opt: opt, journal: j, tallies: newTallies(), making: make(chan struct{}, 1)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.mu.pools = map[store.Digest]*pool{}
	s.mu.current = map[string]store.Digest{}
	s.mu.containers = map[string]*container{}
	return s, nil
}

// Register makes a function callable and returns its digest. It is idempotent. A
// new definition of the same name retires the one before: calls that are under
// way end, its instances and sandboxes go.
func (s *Scheduler) Register(_ context.Context, f function.Function) (store.Digest, error) {
	f.SDK = s.opt.SDK
	f.Spec.EnsureDefaults()
	if err := f.Validate(); err != nil {
		return store.Digest{}, err
	}
	d := f.Digest()
	if err := s.save(d, &f); err != nil {
		return d, err
	}
	s.mu.Lock()
	name := f.Workspace + "/" + f.App + "/" + f.Name
	before, existed := s.mu.current[name]
	s.mu.current[name] = d
	p := s.poolLocked(d, &f)
	var old *pool
	if existed && before != d {
		old = s.mu.pools[before]
	}
	s.mu.Unlock()
	p.setRetired(false)
	if old != nil {
		old.setRetired(true)
		s.pruneSnapshots(&f, d)
	}
	return d, nil
}

// pruneSnapshots keeps the snapshots of the current and of the latest earlier
// definition of a function: whoever goes back and forth between two is served.
func (s *Scheduler) pruneSnapshots(f *function.Function, current store.Digest) {
	var others []store.Digest
	for _, m := range s.opt.Snapshots.All() {
		if m.Key.Workspace == f.Workspace && m.Name == f.App+"."+f.Name && m.Key.Function != current {
			others = append(others, m.Key.Function)
		}
	}
	for i := range len(others) - 1 {
		s.opt.Snapshots.Remove(others[i])
	}
}

func (s *Scheduler) functionPath(d store.Digest) string {
	return filepath.Join(s.opt.Dir, "functions", d.String()+".json")
}

// save keeps a definition. Losing one in a crash costs a client a re-registration.
func (s *Scheduler) save(d store.Digest, f *function.Function) error {
	path := s.functionPath(d)
	now := time.Now()
	if err := os.Chtimes(path, now, now); err == nil { // it is there
		return nil
	}
	b, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return fault.Wrap(err, "encode function", f.Name)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return fault.Wrap(err, "keep function", f.Name)
	}
	_, err = tmp.Write(b)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return fault.Wrap(err, "keep function", f.Name)
}

// pool finds the pool of a function, also of one that an earlier server registered.
func (s *Scheduler) pool(workspace string, d store.Digest) (*pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, fault.New(fault.Unavailable, "the server is shutting down")
	}
	p := s.mu.pools[d]
	if p == nil {
		f, err := s.load(d)
		if err != nil {
			return nil, err
		}
		p = s.poolLocked(d, f)
	}
	if p.fn.Workspace != workspace {
		return nil, noFunction(d)
	}
	s.touch(p)
	return p, nil
}

func noFunction(d store.Digest) error {
	return fault.New(fault.NotFound, "no function %s is registered", d.Short())
}

func (s *Scheduler) load(d store.Digest) (*function.Function, error) {
	b, err := os.ReadFile(s.functionPath(d))
	if errors.Is(err, os.ErrNotExist) {
		return nil, noFunction(d)
	}
	if err != nil {
		return nil, fault.Wrap(err, "read function", d.Short())
	}
	var f function.Function
	if err := json.Unmarshal(b, &f); err != nil || f.Digest() != d {
		_ = os.Remove(s.functionPath(d))
		return nil, fault.New(fault.Corrupt, "the definition of function %s on disk is damaged", d.Short()).WithHint("Run the program again: it registers its functions anew.")
	}
	if f.SDK != s.opt.SDK {
		return nil, fault.New(fault.NotFound, "function %s was registered with another version of the SDK", d.Short()).WithHint("Run the program again: it registers its functions anew.")
	}
	return &f, nil
}

// poolLocked: Precondition: s.mu is held.
func (s *Scheduler) poolLocked(d store.Digest, f *function.Function) *pool {
	p := s.mu.pools[d]
	if p == nil {
		p = newPool(s, d, f)
		s.mu.pools[d] = p
	}
	return p
}

// background runs fn on a goroutine that Close waits for; false when closing.
func (s *Scheduler) background(fn func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return false
	}
	s.work.Go(fn)
	return true
}

// Instances lists what is alive in a workspace, oldest first.
func (s *Scheduler) Instances(_ context.Context, workspace string) ([]InstanceRecord, error) {
	s.mu.Lock()
	pools := make([]*pool, 0, len(s.mu.pools))
	for _, p := range s.mu.pools {
		pools = append(pools, p)
	}
	var out []InstanceRecord
	for _, c := range s.mu.containers {
		if c.record.Workspace == workspace {
			out = append(out, c.record)
		}
	}
	s.mu.Unlock()
	for _, p := range pools {
		if p.fn.Workspace == workspace {
			out = append(out, p.records()...)
		}
	}
	slices.SortFunc(out, func(a, b InstanceRecord) int { return a.Since.Compare(b.Since) })
	return out, nil
}

// Active counts calls and containers under way, for a server that goes when idle.
func (s *Scheduler) Active() int { return s.journal.running() }

// Close ends everything: calls under way fail as Unavailable, all instances are
// destroyed. It returns when nothing is left, or when ctx ends.
func (s *Scheduler) Close(ctx context.Context) error {
	s.mu.Lock()
	s.mu.closed = true
	pools := make([]*pool, 0, len(s.mu.pools))
	for _, p := range s.mu.pools {
		pools = append(pools, p)
	}
	s.mu.Unlock()
	s.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for _, p := range pools {
			wg.Go(p.close)
		}
		wg.Wait()
		s.work.Wait()
		s.journal.close()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fault.New(fault.Timeout, "instances were still being destroyed; the next start of the server sweeps them")
	}
}

// now is the time with the precision that records have.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
