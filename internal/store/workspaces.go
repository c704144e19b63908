package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// SharedWorkspace is the base of all others: what is in it everybody may read.
const SharedWorkspace = "shared"

// Objects at the root of an origin. No workspace's name has capital letters.
const (
	workspacesPrefix = "WORKSPACES/"
	workspacePlain   = "brisk workspace 1 plain\n"
)

// WorkspacesOptions say what the stores of an origin are made of.
type WorkspacesOptions struct {
	Dir     string // local state, a directory for each workspace. Of one process.
	Origin  Origin // closed by its owner, after Close
	Cache   Cache  // of all workspaces; closed by its owner, after Close; nil: none
	Peers   Peers  // nil: none
	Keyring *seal.Keyring
	// MakeKeys has the keys of a workspace that the keyring lacks put into it, where
	// machines share workspaces and one of them makes all keys. nil: the keyring makes them.
	MakeKeys func(ctx context.Context, workspace string) error
	Shared   bool // other machines may use the origin, too
	Sealed   bool // what goes to the origin is sealed: whoever has the origin must not be able to read it
	Log      *slog.Logger

	ReadTimeout time.Duration    // as in Options, as are the following
	Parallel    int              //
	Now         func() time.Time //
}

// Workspaces are the stores of one origin, one for each workspace, below a prefix that
// is its name. They share a cache, and nothing else: no answer of one depends on
// what another has, but for the base (SharedWorkspace). Safe for concurrent use.
type Workspaces struct {
	opts WorkspacesOptions
	log  *slog.Logger

	version once // the origin is of one that we know
	mu      sync.Mutex
	open    map[string]*Store
	closed  bool
}

// OpenWorkspaces opens the stores of an origin. An origin that another version of
// Brisk made is refused with fault.Machine. One that does not answer is not: what is
// local can be read, and everything else asks it again.
func OpenWorkspaces(ctx context.Context, o WorkspacesOptions) (*Workspaces, error) {
	if o.Dir == "" || o.Origin == nil || o.Keyring == nil {
		return nil, fault.New(fault.Invalid, "workspaces need a directory, an origin and a keyring")
	}
	w := &Workspaces{opts: o, log: o.Log, open: map[string]*Store{}, version: newOnce()}
	if w.log == nil {
		w.log = slog.Default()
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := w.check(ctx); Away(err) {
		w.log.Warn("the origin does not answer; what is local can be used", "err", err)
	} else if err != nil {
		return nil, err
	}
	return w, nil
}

// openTimeout is how long opening waits for an origin before it goes on without.
const openTimeout = 5 * time.Second

// check makes sure that the origin is one that this Brisk knows, and marks a new one.
func (w *Workspaces) check(ctx context.Context) error {
	return w.version.do(ctx, func() error {
		return CheckVersion(ctx, w.opts.Origin)
	})
}

// once does something until it has succeeded once.
type once struct {
	turn chan struct{} // held while it is tried
	done *atomic.Bool
}

func newOnce() once { return once{make(chan struct{}, 1), new(atomic.Bool)} }

func (o once) do(ctx context.Context, fn func() error) error {
	if o.done.Load() {
		return nil
	}
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "wait for", "the origin")
	}
	if o.done.Load() {
		return nil
	}
	err := fn()
	o.done.Store(err == nil)
	return err
}

// Store gives a workspace's store, which is opened once and closed by Close. A
// workspace that is new gets a key. One that others have sealed with a key that is
// not here is refused with fault.Machine.
func (w *Workspaces) Store(workspace string) (*Store, error) {
	if err := seal.CheckWorkspace(workspace); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.store(workspace)
	if err != nil || workspace == SharedWorkspace {
		return s, err
	}
	if base, err := w.base(); err != nil {
		w.log.Warn("the shared images cannot be used", "err", err)
	} else if base != nil {
		s.base.Store(base)
	}
	return s, nil
}

// Base gives the store of the shared workspace, or nil if nobody has made one that
// could be read here: Store makes it.
func (w *Workspaces) Base() (*Store, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.base()
}

func (w *Workspaces) base() (*Store, error) {
	if w.opts.Sealed {
		// A key that is made too early, on each machine another, would be in the way later.
		if _, err := w.opts.Keyring.Find(SharedWorkspace); fault.Is(err, fault.NotFound) {
			return nil, nil
		}
	}
	return w.store(SharedWorkspace)
}

// store opens a store. Precondition: w.mu is held.
func (w *Workspaces) store(workspace string) (*Store, error) {
	if w.closed {
		return nil, errClosed()
	}
	if s := w.open[workspace]; s != nil {
		return s, nil
	}
	keys, err := w.keys(workspace)
	if err != nil {
		return nil, fault.Wrap(err, "open workspace", workspace)
	}
	r := &registration{w: w, workspace: workspace, keys: keys, done: newOnce()}
	s, err := Open(context.Background(), Options{
		Dir: filepath.Join(w.opts.Dir, workspace), Origin: Prefix(w.opts.Origin, workspace+"/"),
		Cache: w.opts.Cache, Keys: keys, Sealed: w.opts.Sealed, Peers: w.opts.Peers, Shared: w.opts.Shared,
		Log: w.log.With("workspace", workspace), Now: w.opts.Now,
		ReadTimeout: w.opts.ReadTimeout, Parallel: w.opts.Parallel, ready: r.check,
	})
	if err != nil {
		return nil, err
	}
	w.open[workspace] = s
	if workspace == SharedWorkspace {
		for name, other := range w.open {
			if name != SharedWorkspace {
				other.base.Store(s)
			}
		}
	}
	return s, nil
}

// keys finds a workspace's keys. New ones are made only if the origin is known to
// have nothing that other keys have sealed.
func (w *Workspaces) keys(workspace string) (*seal.Keys, error) {
	keys, err := w.opts.Keyring.Find(workspace)
	if !fault.Is(err, fault.NotFound) {
		return keys, err
	}
	if w.opts.MakeKeys != nil {
		ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
		defer cancel()
		if err := w.opts.MakeKeys(ctx, workspace); err != nil {
			return nil, err
		}
		return w.opts.Keyring.Find(workspace)
	}
	if w.opts.Sealed {
		ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
		defer cancel()
		b, _, err := w.opts.Origin.Get(ctx, workspacesPrefix+workspace, 4096)
		if err == nil {
			return nil, foreign(workspace, string(b), "none")
		}
		if !fault.Is(err, fault.NotFound) {
			return nil, fault.Wrap(err, "look for", "the workspace at the origin")
		}
	}
	return w.opts.Keyring.Keys(workspace)
}

// markForm is what workspaces are marked with, by this version and by later ones.
var markForm = regexp.MustCompile(`^brisk workspace (1 plain|1 sealed [0-9a-f]{16}|([2-9]|[1-9][0-9]+) .*)\n$`)

// foreign is the error for a workspace that is marked as another's.
func foreign(workspace, mark, have string) error {
	if !markForm.MatchString(mark) {
		return fault.New(fault.Corrupt, "the object %s at the origin is damaged: it says %q", workspacesPrefix+workspace, mark).
			WithHint("If the key here (%s) is the workspace's, remove the object: Brisk writes it anew.", have)
	}
	return fault.New(fault.Machine, "workspace %q at the origin is %q, and the key here is %s", workspace, strings.TrimSpace(mark), have).
		WithHint("Print the key where the workspace is used, with `brisk store key export %s`, and put it in here with `brisk store key import`.", workspace)
}

// registration makes a workspace known at the origin, with the key that its objects
// are sealed with, before the first of them is written.
type registration struct {
	w         *Workspaces
	workspace string
	keys      *seal.Keys

	done once
}

func (r *registration) check(ctx context.Context) error {
	return r.done.do(ctx, func() error {
		if err := r.w.check(ctx); err != nil {
			return err
		}
		want := workspacePlain
		if r.w.opts.Sealed {
			want = fmt.Sprintf("brisk workspace 1 sealed %s\n", r.keys.ID())
		}
		have, err := mark(ctx, r.w.opts.Origin, workspacesPrefix+r.workspace, want)
		if err != nil {
			return fault.Wrap(err, "open workspace", r.workspace)
		}
		if have != want {
			return foreign(r.workspace, have, r.keys.ID().String())
		}
		return nil
	})
}

// Keys gives a workspace's keys; fault.NotFound if it has none here.
func (w *Workspaces) Keys(workspace string) (*seal.Keys, error) {
	return w.opts.Keyring.Find(workspace)
}

// List gives the workspaces that the origin has, in no particular order.
func (w *Workspaces) List(ctx context.Context) (l []string, err error) {
	err = w.opts.Origin.List(ctx, workspacesPrefix, func(o Object) error {
		if name := strings.TrimPrefix(o.Key, workspacesPrefix); seal.CheckWorkspace(name) == nil {
			l = append(l, name)
		}
		return nil
	})
	return l, fault.Wrap(err, "list", "workspaces")
}

// Stats adds up the counts of the stores that are open, so that they say nothing of
// any one workspace.
func (w *Workspaces) Stats() (sum Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.open {
		sum.add(s.Stats())
	}
	return sum
}

// Close closes the stores, the base last.
func (w *Workspaces) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	var errs []error
	for name, s := range w.open {
		if name != SharedWorkspace {
			errs = append(errs, s.Close())
		}
	}
	if base := w.open[SharedWorkspace]; base != nil {
		errs = append(errs, base.Close())
	}
	return errors.Join(errs...)
}
