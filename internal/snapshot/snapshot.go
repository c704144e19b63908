// Package snapshot keeps images of the memory of warm processes, and decides
// which of them may be used.
//
// A snapshot belongs to one function (by digest) and is an image of an instance
// that had imported the user's module and seen no request, so that nobody's data
// is in it. What it may be restored with is written beside it: the runtime's
// build, the CPU's features, the image, the shape of the sandbox. Anything that
// differs means "not usable", said before anything is started.
//
// On disk (docs/format/snapshot.md):
//
//	DIR/<function digest>/snapshot.json   the manifest, written last
//	DIR/<function digest>/image/          the runtime's files
//	DIR/tmp-*                             one being made; swept by Open
//
// A snapshot appears whole or not at all: it is made in tmp-*, synced, and then
// renamed. Every file is listed as chunks (as an image's files are), and is
// checked against them before the first restore after Open, so that a rotten
// page is a clear error and a cold start, never a wrong number.
//
// Failures are capped: after MaxFailures failed makings or restores a function
// runs without snapshots until the server restarts, and Status says why.
//
// Make runs for seconds in the background; Find never waits for it, but it does
// wait for the check of a snapshot that has not been checked yet.
package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// FormatVersion of the manifest. Others are not usable, and are made again.
const FormatVersion = 1

// MaxFailures is how often making or restoring may fail before a function runs without.
const MaxFailures = 3

// Key says what a snapshot depends on. Only an equal key may restore it.
type Key struct {
	Workspace string       `json:"workspace"`
	Function  store.Digest `json:"function"`
	Image     store.Digest `json:"image"`
	Shape     store.Digest `json:"shape"`    // of the sandbox's spec
	Runtime   string       `json:"runtime"`  // the runtime's build
	Features  []string     `json:"features"` // CPU features, sorted
}

// differs names the first part that keeps a snapshot with key k from being used for want.
func (k Key) differs(want Key) string {
	switch {
	case k.Workspace != want.Workspace:
		return "it belongs to another workspace"
	case k.Function != want.Function:
		return "it is of another function"
	case k.Image != want.Image:
		return "it was made on another image"
	case k.Shape != want.Shape:
		return "it was made in a sandbox of another shape"
	case k.Runtime != want.Runtime:
		return "it was made by runsc " + k.Runtime + ", and this is " + want.Runtime
	case !slices.Equal(k.Features, want.Features):
		return "it was made on a CPU with other features"
	}
	return ""
}

// Snapshot is one that may be restored.
type Snapshot struct {
	Dir      string // of the runtime's files
	Manifest Manifest
}

// Manifest is snapshot.json.
type Manifest struct {
	Version int       `json:"version"`
	Key     Key       `json:"key"`
	Name    string    `json:"name"` // of the function, for people: app.name
	Created time.Time `json:"created"`
	MS      float64   `json:"ms"` // how long the checkpoint took
	Files   []File    `json:"files"`
}

// File is one of the runtime's files, as chunks of store.ChunkSize bytes.
type File struct {
	Name   string         `json:"name"`
	Size   int64          `json:"size"`
	Chunks []store.Digest `json:"chunks"`
}

// Bytes is the size of all files.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Status says how a function stands.
type Status struct {
	State  string `json:"state"` // none, making, ready, failed
	Reason string `json:"reason,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
}

// Snapshots is the collection of one machine.
type Snapshots struct {
	dir string
	log *slog.Logger
	mu  struct {
		sync.Mutex
		of map[store.Digest]*entry
	}
}

// entry is guarded by Snapshots.mu, but for check.
type entry struct {
	snap     *Snapshot
	making   bool
	failures int
	reason   string
	check    *sync.Once // runs the first check of what was found on disk
	checked  error
}

// Open reads what is in dir and sweeps what was left unfinished.
func Open(dir string, log *slog.Logger) (*Snapshots, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "open snapshots in", dir)
	}
	s := &Snapshots{dir: dir, log: log}
	s.mu.of = map[store.Digest]*entry{}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fault.Wrap(err, "open snapshots in", dir)
	}
	for _, n := range names {
		path := filepath.Join(dir, n.Name())
		if strings.HasPrefix(n.Name(), "tmp-") {
			if err := os.RemoveAll(path); err != nil {
				return nil, fault.Wrap(err, "sweep unfinished snapshot", path)
			}
			continue
		}
		d, err := store.ParseDigest(n.Name())
		if err != nil {
			continue // not ours
		}
		m, err := readManifest(filepath.Join(path, "snapshot.json"))
		if err != nil {
			log.Warn("a snapshot cannot be read and is dropped", "function", d.Short(), "error", err)
			_ = os.RemoveAll(path)
			continue
		}
		s.mu.of[d] = &entry{snap: &Snapshot{Dir: filepath.Join(path, "image"), Manifest: m}, check: new(sync.Once)}
	}
	return s, nil
}

func readManifest(path string) (Manifest, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Manifest{}, err
	}
	return DecodeManifest(b)
}

// DecodeManifest parses and checks a manifest.
func DecodeManifest(b []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fault.New(fault.Corrupt, "snapshot manifest: %v", err)
	}
	if m.Version != FormatVersion {
		return m, fault.New(fault.Invalid, "snapshot manifest of version %d; this Brisk reads %d", m.Version, FormatVersion)
	}
	if len(m.Files) == 0 {
		return m, fault.New(fault.Corrupt, "snapshot manifest without files")
	}
	for _, f := range m.Files {
		if f.Name == "" || f.Name != filepath.Base(f.Name) || f.Name == "." || f.Name == ".." {
			return m, fault.New(fault.Corrupt, "snapshot manifest: %q is not a file name", f.Name)
		}
		if f.Size < 0 || int64(len(f.Chunks)) != (f.Size+store.ChunkSize-1)/store.ChunkSize {
			return m, fault.New(fault.Corrupt, "snapshot manifest: %s of %d bytes with %d chunks", f.Name, f.Size, len(f.Chunks))
		}
	}
	return m, nil
}

// Find gives the snapshot that may be restored for key, or nil and the reason why
// there is none. A snapshot that turns out to be unusable is removed.
func (s *Snapshots) Find(ctx context.Context, key Key) (*Snapshot, string) {
	s.mu.Lock()
	e := s.mu.of[key.Function]
	if e == nil || e.snap == nil {
		reason := "none has been made yet"
		if e != nil && e.reason != "" {
			reason = e.reason
		} else if e != nil && e.making {
			reason = "it is being made"
		}
		s.mu.Unlock()
		return nil, reason
	}
	snap, check := e.snap, e.check
	s.mu.Unlock()

	reason := snap.Manifest.Key.differs(key)
	if reason == "" && check != nil {
		// Not cut short by a caller who goes away: the result is everybody's.
		check.Do(func() { e.checked = snap.verify(context.WithoutCancel(ctx)) })
		if e.checked != nil {
			reason = e.checked.Error()
		}
	}
	if reason == "" {
		return snap, ""
	}
	s.log.Warn("a snapshot is not usable and is removed", "function", key.Function.Short(), "reason", reason)
	s.drop(key.Function, snap)
	return nil, reason
}

// verify reads all files and compares them with the manifest.
func (s *Snapshot) verify(ctx context.Context) error {
	buf := make([]byte, store.ChunkSize)
	for _, f := range s.Manifest.Files {
		got, err := describe(ctx, filepath.Join(s.Dir, f.Name), buf)
		if err != nil {
			return err
		}
		if got.Size != f.Size || !slices.Equal(got.Chunks, f.Chunks) {
			return fault.New(fault.Corrupt, "its file %s is damaged", f.Name)
		}
	}
	return nil
}

// CheckAll checks every snapshot in the background of a server that has just
// started, so that the first restores need not. It stops with ctx.
func (s *Snapshots) CheckAll(ctx context.Context) {
	s.mu.Lock()
	var keys []Key
	for _, e := range s.mu.of {
		if e.snap != nil && e.check != nil {
			keys = append(keys, e.snap.Manifest.Key)
		}
	}
	s.mu.Unlock()
	for _, k := range keys {
		if ctx.Err() != nil {
			return
		}
		s.Find(ctx, k)
	}
}

// ErrBusy says that the snapshot exists, is being made, or has failed too often.
var ErrBusy = errors.New("no snapshot is wanted now")

// Make makes the snapshot of key by calling checkpoint with a directory that
// does not exist yet. Only one is made at a time for a function; ErrBusy means
// that there was nothing to do.
func (s *Snapshots) Make(ctx context.Context, key Key, name string, checkpoint func(dir string) error) (*Snapshot, error) {
	if !s.begin(key.Function) {
		return nil, ErrBusy
	}
	snap, err := s.make(ctx, key, name, checkpoint)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.of[key.Function]
	e.making = false
	if err != nil {
		s.failed(e, "making it failed: "+err.Error())
		return nil, err
	}
	e.snap, e.reason, e.check = snap, "", nil
	return snap, nil
}

// Wanted reports whether Make would do something.
func (s *Snapshots) Wanted(function store.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.of[function].wanted()
}

func (e *entry) wanted() bool {
	return e == nil || e.snap == nil && !e.making && e.failures < MaxFailures
}

func (s *Snapshots) begin(function store.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.of[function]
	if !e.wanted() {
		return false
	}
	if e == nil {
		e = &entry{}
		s.mu.of[function] = e
	}
	e.making = true
	return true
}

func (s *Snapshots) make(ctx context.Context, key Key, name string, checkpoint func(dir string) error) (_ *Snapshot, err error) {
	tmp, err := os.MkdirTemp(s.dir, "tmp-")
	if err != nil {
		return nil, fault.Wrap(err, "make a snapshot in", s.dir)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
		}
	}()
	start := time.Now()
	image := filepath.Join(tmp, "image")
	if err := checkpoint(image); err != nil {
		return nil, err
	}
	m := Manifest{Version: FormatVersion, Key: key, Name: name, Created: start.UTC().Truncate(time.Millisecond), MS: float64(time.Since(start).Microseconds()) / 1000}
	names, err := os.ReadDir(image)
	if err != nil {
		return nil, fault.Wrap(err, "read the checkpoint of", name)
	}
	buf := make([]byte, store.ChunkSize)
	for _, n := range names {
		f, err := describe(ctx, filepath.Join(image, n.Name()), buf)
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, f)
	}
	if err := writeManifest(filepath.Join(tmp, "snapshot.json"), m); err != nil {
		return nil, err
	}
	if err := syncDirs(image, tmp); err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, key.Function.String())
	if err := os.RemoveAll(dir); err != nil { // an unusable one
		return nil, fault.Wrap(err, "replace snapshot", dir)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, fault.Wrap(err, "publish snapshot", dir)
	}
	if err := syncDirs(s.dir); err != nil {
		s.log.Warn("a snapshot may be lost in a power failure", "error", err)
	}
	return &Snapshot{Dir: filepath.Join(dir, "image"), Manifest: m}, nil
}

// Failed counts a failed restore; the snapshot is thrown away, since it would fail again.
func (s *Snapshots) Failed(snap *Snapshot, cause error) {
	key := snap.Manifest.Key.Function
	s.drop(key, snap)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed(s.mu.of[key], "restoring it failed: "+cause.Error())
}

func (s *Snapshots) failed(e *entry, reason string) {
	e.failures++
	e.reason = reason
	if e.failures >= MaxFailures {
		e.reason = "it has failed 3 times, the last time: " + reason
	}
}

func (s *Snapshots) drop(function store.Digest, snap *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.mu.of[function]; e != nil && e.snap == snap {
		e.snap, e.check = nil, nil
		if err := os.RemoveAll(filepath.Dir(snap.Dir)); err != nil {
			s.log.Warn("a snapshot cannot be removed", "dir", snap.Dir, "error", err)
		}
	}
}

// Status tells how the snapshot of a function stands.
func (s *Snapshots) Status(function store.Digest) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := s.mu.of[function]; {
	case e == nil:
		return Status{State: "none"}
	case e.making:
		return Status{State: "making"}
	case e.snap != nil:
		return Status{State: "ready", Bytes: e.snap.Manifest.Bytes()}
	case e.failures >= MaxFailures:
		return Status{State: "failed", Reason: e.reason}
	default:
		return Status{State: "none", Reason: e.reason}
	}
}

// Remove deletes the snapshot of a function that nothing will call again.
func (s *Snapshots) Remove(function store.Digest) {
	s.mu.Lock()
	e := s.mu.of[function]
	s.mu.Unlock()
	if e != nil && e.snap != nil {
		s.drop(function, e.snap)
	}
}

// Sweep removes the snapshots that keep does not want, and returns how many went,
// with their bytes; dry only counts. One that a restore is reading may go: it fails, and
// the instance starts cold.
func (s *Snapshots) Sweep(keep func(Key) bool, dry bool) (n int, bytes int64) {
	s.mu.Lock()
	var found []*Snapshot
	for _, e := range s.mu.of {
		if e.snap != nil && !keep(e.snap.Manifest.Key) {
			found = append(found, e.snap)
		}
	}
	s.mu.Unlock()
	for _, snap := range found {
		n, bytes = n+1, bytes+snap.Manifest.Bytes()
		if !dry {
			s.drop(snap.Manifest.Key.Function, snap)
		}
	}
	return n, bytes
}

// All lists what there is.
func (s *Snapshots) All() []Manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Manifest
	for _, e := range s.mu.of {
		if e.snap != nil {
			all = append(all, e.snap.Manifest)
		}
	}
	slices.SortFunc(all, func(a, b Manifest) int { return a.Created.Compare(b.Created) })
	return all
}
