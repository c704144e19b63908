// Package build makes images step by step out of a Definition: a base (a small
// Debian, an image that is there or in a registry, what a Dockerfile makes) and what to
// install, run, add and set on it.
//
// # Steps
//
// A step that changes files runs as a command in a sandbox on the image that the
// step before made, and what it changed is committed as an image of its own. The
// sandbox is somebody else's: an Executor. Files are added without one, and
// environment and working directory are configuration only. The Debian itself is
// put together by mmdebstrap on the host and streamed into the store.
//
// # What it promises
//
// Equal work is done once. The result of every step is remembered under a digest
// of everything that it follows from: the image before it, its configuration,
// the step. Two builds that want the same step at the same time wait for one
// run, which goes on until neither of them does. What is remembered counts only
// as long as all of the image is in the store, so that building again mends
// damage. Steps that fail are not remembered, and leave nothing.
//
// How the host reaches the network (package hostconfig) serves the steps, and is
// not in any image, nor part of any digest. Its credentials serve the machine's
// owner only, who is the default workspace.
//
// # Who may block whom
//
// A Build blocks on its steps. A reader of events who is slow delays only its own
// Build. Close cancels the steps and waits for them.
package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/build/hostconfig"
	"brisk.dev/brisk/internal/image/memo"
	"brisk.dev/brisk/internal/store"
)

// version is part of every digest of work. It changes when equal work would give
// another image.
const version = 1

// Options say what a Builder works with.
type Options struct {
	Images   *image.Images
	Dir      string // results of steps, and work in progress; of one process at a time
	Executor Executor
	// Blobs opens uploaded content by its name, "sha256:HEX".
	Blobs func(ctx context.Context, workspace, id string) (io.ReadCloser, error)
	// Containers brings container images in.
	Containers Containers
	Log        *slog.Logger // nil: slog.Default()
	// Share tells other machines of the same store which image a step made, and asks
	// them: a new machine then builds nothing that another has built.
	Share bool

	StepTimeout time.Duration // of one step's command; 0 is one hour
}

// Builder builds images. Safe for concurrent use.
type Builder struct {
	opts    Options
	work    string // directory of what is in progress
	memo    *memo.Memo
	flights *flights
	machine hostconfig.Options // this one, but for tests
}

// New makes a Builder, and removes what an earlier one left in progress.
func New(o Options) (*Builder, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.StepTimeout == 0 {
		o.StepTimeout = time.Hour
	}
	m, err := memo.Open(filepath.Join(o.Dir, "steps"))
	if err != nil {
		return nil, err
	}
	b := &Builder{opts: o, work: filepath.Join(o.Dir, "work"), memo: m, flights: newFlights()}
	err = removeAll(b.work)
	if err == nil {
		err = os.Mkdir(b.work, 0o700)
	}
	if err != nil {
		return nil, store.DiskError(err, "open builder", o.Dir)
	}
	return b, nil
}

// Close cancels what is being built and waits for it.
func (b *Builder) Close() error {
	b.flights.close()
	return nil
}

// Memo is what the builder remembers of its steps.
func (b *Builder) Memo() *memo.Memo { return b.memo }

// Build makes the image of a definition, which it validates, and returns when the
// image is durable. It gets no name. events, which may be nil, is called from the
// calling goroutine. Errors: Invalid for the definition, NotFound for its base or
// a blob, BuildFailed for a step whose command failed, with the end of its output
// in the message; and whatever the machine may be lacking.
func (b *Builder) Build(ctx context.Context, workspace string, def Definition, events func(Event)) (*image.Image, error) {
	if err := image.CheckRef(workspace, ""); err != nil {
		return nil, err
	}
	if err := def.Validate(); err != nil {
		return nil, err
	}
	if events == nil {
		events = func(Event) {}
	}
	run := &run{b: b, workspace: workspace, events: events, total: 1 + len(def.Steps)}
	if err := run.base(ctx, def.Base); err != nil {
		return nil, err
	}
	for _, s := range def.Steps {
		if err := run.step(ctx, s); err != nil {
			return nil, err
		}
	}
	if err := run.settle(ctx); err != nil {
		return nil, err
	}
	return run.image, nil
}

// run is one Build on its way.
type run struct {
	b         *Builder
	workspace string
	events    func(Event)
	index     int // of the step, from 1
	total     int

	image  *image.Image // that the last step made which made one
	config image.Config // what the next one gets
	dirs   []string     // working directories that the next one has to have
}

// base begins.
func (r *run) base(ctx context.Context, base Base) error {
	switch base.Kind {
	case FromRegistry:
		return r.fromRegistry(ctx, base)
	case FromDockerfile:
		return r.fromDockerfile(ctx, base)
	case FromImage:
		r.begin("image "+base.Name, true)
		img, err := r.b.opts.Images.Get(ctx, image.Ref{Workspace: r.workspace, Name: base.Name})
		if err != nil {
			return fault.Wrap(err, "build on", "image "+base.Name)
		}
		return r.on(img)
	}
	rel, err := base.release()
	if err != nil {
		return invalid("the base", err)
	}
	text := fmt.Sprintf("Debian %s with Python %s", rel.suite, rel.python)
	img, err := r.make(ctx, r.b.baseKey(r.workspace, rel), text, true, func(ctx context.Context, out *output) (*image.Image, error) {
		return r.b.debian(ctx, r.workspace, rel, out)
	})
	if err != nil {
		return err
	}
	return r.on(img)
}

// on goes on from an image.
func (r *run) on(img *image.Image) error {
	r.image, r.config, r.dirs = img, img.Config().Clone(), nil
	return nil
}

// step does one instruction.
func (r *run) step(ctx context.Context, s Instruction) error {
	switch s.Kind {
	case Env:
		r.begin(s.Summary(), true)
		for _, name := range sortedKeys(s.Vars) {
			r.config.Env = setEnv(r.config.Env, name, s.Vars[name])
		}
		return nil
	case Workdir:
		r.begin(s.Summary(), true)
		r.config.Workdir = s.Path
		r.dirs = append(r.dirs, s.Path)
		return nil
	}
	if len(r.dirs) > 0 {
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	parent, config := r.image, r.config
	img, err := r.make(ctx, r.key(s), s.Summary(), true, func(ctx context.Context, out *output) (*image.Image, error) {
		if s.Kind == Add {
			return r.b.add(ctx, r.workspace, parent, config, s)
		}
		return r.b.command(ctx, r.workspace, parent, config, s, out)
	})
	if err != nil {
		return err
	}
	return r.on(img)
}

// settle makes an image of changes to the configuration that no step has taken
// along, and of working directories that are not there yet.
func (r *run) settle(ctx context.Context) error {
	if len(r.dirs) == 0 && reflect.DeepEqual(r.config, r.image.Config()) {
		return nil
	}
	parent, config, dirs := r.image, r.config, r.dirs
	key := r.key(struct{ Dirs []string }{dirs})
	img, err := r.make(ctx, key, "", false, func(ctx context.Context, _ *output) (*image.Image, error) {
		layer, err := missingDirs(ctx, parent, dirs)
		if err != nil {
			return nil, err
		}
		return r.b.extend(ctx, r.workspace, parent, layer, image.LayerOptions{Whiteouts: image.NoWhiteouts}, config)
	})
	if err != nil {
		return err
	}
	return r.on(img)
}

// key is the digest of a step: of everything that its result follows from.
func (r *run) key(step any) store.Digest {
	if s, ok := step.(Instruction); ok {
		s.Text = "" // says the same to people only
		step = s
	}
	return workKey("step", r.workspace, r.image.Digest, r.config, step)
}

// workKey digests what work consists of.
func workKey(parts ...any) store.Digest {
	b, err := json.Marshal(parts) // struct fields in order, map keys sorted: canonical
	if err != nil {
		panic("build: a definition always has a JSON form: " + err.Error())
	}
	return store.Sum(fmt.Appendf(nil, "brisk build %d\n%s", version, b))
}

// make gives the image that work makes: the remembered one, or that of a run. What
// is visible is a step for people.
func (r *run) make(ctx context.Context, key store.Digest, text string, visible bool, do func(context.Context, *output) (*image.Image, error)) (*image.Image, error) {
	img, err := r.b.recall(ctx, r.workspace, key)
	if visible {
		r.begin(text, img != nil)
	}
	if err != nil || img != nil {
		return img, err
	}
	return r.flight(ctx, key, text, visible, func(ctx context.Context, out *output) (store.Digest, error) {
		// Somebody may have been faster.
		img, err := r.b.recall(ctx, r.workspace, key)
		if err == nil && img == nil {
			if img, err = do(ctx, out); err == nil {
				if err = r.b.memo.Put(key, img.Digest); err == nil {
					r.b.tell(ctx, r.workspace, key, img.Digest)
				}
			}
		}
		if err != nil {
			return store.Digest{}, err
		}
		return img.Digest, nil
	})
}

// flight gives the image that work makes under a key, or is making for somebody else. Its
// errors name the step, text, which is "" for work whose own do.
func (r *run) flight(ctx context.Context, key store.Digest, text string, visible bool, do work) (*image.Image, error) {
	if text != "" {
		text = ", " + text
	}
	began := time.Now()
	d, err := r.b.flights.do(ctx, key, do, func(p []byte) { r.events(Event{Kind: Output, Log: p}) })
	if err != nil {
		if visible {
			err = fmt.Errorf("step %d of %d%s: %w", r.index, r.total, text, err)
		}
		return nil, err
	}
	img, err := r.b.opts.Images.Get(ctx, image.Ref{Workspace: r.workspace, Name: d.String()})
	if err == nil && visible {
		r.events(Event{Kind: Progress, Text: fmt.Sprintf("image %s: %d files, %d MiB, after %.1f s",
			d.Short(), img.Manifest.Files, img.Manifest.Bytes>>20, time.Since(began).Seconds())})
	}
	return img, err
}

func (b *Builder) recall(ctx context.Context, workspace string, key store.Digest) (*image.Image, error) {
	img, err := b.memo.Recall(ctx, b.opts.Images, workspace, key)
	if err != nil || img != nil || !b.opts.Share {
		return img, err
	}
	made, known := b.ask(ctx, workspace, key)
	if !known {
		return nil, ctx.Err()
	}
	if err := b.memo.Put(key, made); err != nil {
		return nil, err
	}
	return b.memo.Recall(ctx, b.opts.Images, workspace, key)
}

// builtKind is the kind of the records that tell which image a step made: the name is
// the step's digest, the content the image's.
const builtKind = "builds"

// tell lets other machines know. That they do not is no reason to fail.
func (b *Builder) tell(ctx context.Context, workspace string, key, made store.Digest) {
	if !b.opts.Share {
		return
	}
	s, err := b.opts.Images.Store(workspace)
	if err == nil {
		_, err = s.PutRecord(ctx, builtKind, key.String(), []byte(made.String()), nil)
	}
	if err != nil && ctx.Err() == nil {
		b.opts.Log.Warn("other machines will build this step again", "step", key.Short(), "err", err)
	}
}

// ask gives what another machine has told, if anything.
func (b *Builder) ask(ctx context.Context, workspace string, key store.Digest) (made store.Digest, known bool) {
	s, err := b.opts.Images.Store(workspace)
	if err != nil {
		return made, false
	}
	data, _, err := s.GetRecord(ctx, builtKind, key.String())
	if err == nil {
		made, err = store.ParseDigest(string(data))
	}
	if err != nil && !fault.Is(err, fault.NotFound) && ctx.Err() == nil {
		b.opts.Log.Warn("nobody knows whether another machine has built this step", "step", key.Short(), "err", err)
	}
	return made, err == nil
}

// begin tells that a step begins.
func (r *run) begin(text string, cached bool) {
	r.index++
	r.events(Event{Kind: StepBegins, Index: r.index, Total: r.total, Text: text, Cached: cached})
}

// extend makes an image of a parent, which may be a shared one, a layer on top and a
// configuration.
func (b *Builder) extend(ctx context.Context, workspace string, parent *image.Image, layer io.Reader, opt image.LayerOptions, config image.Config) (*image.Image, error) {
	img, _, err := b.opts.Images.Extend(ctx, parent, layer, opt, func(c *image.Config) { *c = config.Clone() }, workspace, "")
	return img, err
}

// setEnv sets a variable in a list of NAME=VALUE, in its place if it is there.
func setEnv(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return hasName(kv, name) })
	return append(env, name+"="+value)
}

func hasName(kv, name string) bool {
	return len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name
}

// missing reports whether err says that a path leads nowhere in a tree.
func missing(err error) bool { return fault.Is(err, fault.NotFound) }

// drained reads r to its end, so that whoever writes to it gets done.
func drained(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

var errNoLayer = errors.New("the sandbox gave no layer")

// emptyLayer is a tar with nothing in it.
func emptyLayer() io.Reader { return bytes.NewReader(make([]byte, 1024)) }
