package lazyfs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Options say where and how. Dir is needed, all else has a sensible zero value.
type Options struct {
	// Dir is an absolute path of a 0700 directory of ours: fuse/, images/,
	// holder.sock and holder.lock live in it.
	Dir string
	// Holder is the argv of a program that calls RunHolder with the arguments
	// that follow. Without it nothing outlives this process.
	Holder []string
	// Linger is how long a holder waits for the next server (default 60 s).
	Linger time.Duration
	// Lookup finds an image that an earlier server mounted. Concurrent calls are
	// for different images.
	Lookup func(ctx context.Context, id string) (Image, error)
	// Compat does what kernels before 6.9 and 6.12 need: no holder, loop
	// devices. Each of both is chosen by itself where the kernel cannot do better.
	Compat bool
	// ReadAhead is how far the kernel reads ahead, in bytes (default 1
	// MiB). More is faster over a slow network and fetches more that nobody reads:
	// importing numpy+pandas 27 to 57% more than with 128 KiB, while a sequential read
	// at 3 ms a chunk goes from 60 to 400 MB/s.
	ReadAhead int
	// Memory bounds the answers in the making, in bytes (default 64 MiB, at
	// least 4 MiB); one image may use a quarter of it.
	Memory int64
	// Deadline is the longest that a read may take until it fails (default 30 s).
	Deadline time.Duration
	// Keep is how long a mount that nobody uses is kept (default 10 minutes).
	Keep time.Duration
	Log  *slog.Logger
}

func (o *Options) ensureDefaults() error {
	if !filepath.IsAbs(o.Dir) || strings.ContainsAny(o.Dir, ",\n") {
		return fault.New(fault.Invalid, "%q cannot hold mounts: want an absolute path without commas", o.Dir)
	}
	o.Dir = filepath.Clean(o.Dir)
	setDefault(&o.Linger, time.Minute)
	setDefault(&o.ReadAhead, 1<<20)
	setDefault(&o.Memory, 64<<20)
	o.Memory = max(o.Memory, 4*maxRead) // a quarter must hold the longest read
	setDefault(&o.Deadline, 30*time.Second)
	setDefault(&o.Keep, 10*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// FS is the FUSE filesystem and the image mounts over it. Safe for concurrent use.
type FS struct {
	o      Options
	dev    *device
	server *server
	files  *files
	keeper *keeper // nil without a holder; the janitor's while it runs
	stop   context.CancelFunc
	idle   chan struct{} // closed when the janitor has ended
	close  sync.Once
	final  error // of Close

	mu     sync.Mutex
	closed bool
	loops  bool              // this kernel wants loop devices
	mounts map[string]*mount // by ID; those being mounted or unmounted as well
}

// Open takes over from a holder in Options.Dir if there is one, and starts afresh
// otherwise: what a dead server left without a holder is unmounted first. ctx
// bounds Open only. It fails with fault.Exists if another server is connected to
// the holder.
func Open(ctx context.Context, o Options) (*FS, error) {
	if err := o.ensureDefaults(); err != nil {
		return nil, err
	}
	f := &FS{o: o, mounts: map[string]*mount{}, loops: o.Compat, idle: make(chan struct{})}
	f.files = &files{budget: o.Memory / 4, byNode: map[uint64]*file{}}
	taken, err := f.takeOver(ctx)
	if err != nil {
		return nil, err
	}
	if !taken {
		if err := f.begin(ctx); err != nil {
			return nil, err
		}
	}
	serving, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.server = &server{
		dev: f.dev, files: f.files, lookup: o.Lookup, deadline: o.Deadline,
		budget: semaphore.NewWeighted(o.Memory), log: newComplaints(o.Log),
		released: f.forget, ctx: serving,
	}
	f.server.start()
	go f.janitor(serving)
	if taken {
		if err := f.dev.askAgain(); err != nil {
			f.Close()
			return nil, fault.Wrap(err, "have reads sent again", "")
		}
	}
	return f, nil
}

// begin makes the FUSE mount, and a holder for it.
func (f *FS) begin(ctx context.Context) error {
	if err := detachAll(f.o.Dir); err != nil {
		return err
	}
	for _, dir := range []string{fuseDir(f.o.Dir), imagesDir(f.o.Dir)} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fault.Wrap(err, "create", dir)
		}
	}
	dev, err := mountDevice(fuseDir(f.o.Dir))
	if err != nil {
		return err
	}
	f.dev = dev
	if f.o.Compat || !dev.resend || len(f.o.Holder) == 0 {
		return nil
	}
	if f.keeper, err = startHolder(ctx, f.o, dev.fd); err != nil {
		_ = detachAll(f.o.Dir) // the error above is the one that matters
		dev.close()
	}
	return err
}

// takeOver continues what a holder holds, if there is one that this server can use.
func (f *FS) takeOver(ctx context.Context) (bool, error) {
	k, fd, err := awaitHolder(ctx, f.o.Dir)
	if err != nil || k == nil {
		return false, err
	}
	points, err := mountsBelow(f.o.Dir)
	if err != nil {
		unix.Close(fd)
		k.close()
		return false, err
	}
	if f.o.Compat || len(f.o.Holder) == 0 || !slices.Contains(points, fuseDir(f.o.Dir)) {
		unix.Close(fd)
		return false, k.dismiss()
	}
	f.keeper, f.dev = k, &device{fd: fd, session: session{resend: true}}
	f.recover(points)
	return true, nil
}

// recover learns from the mount points which images the kernel may ask for. A
// directory stays as long as the kernel has the image's file open, so it also
// tells of images that only a sandbox's namespace still mounts.
func (f *FS) recover(points []string) {
	entries, _ := os.ReadDir(imagesDir(f.o.Dir))
	for _, e := range entries {
		id := e.Name()
		mounted := slices.Contains(points, imagePath(f.o.Dir, id))
		if isNative(id) {
			m := &mount{id: id, ready: closedChannel, unused: time.Now()}
			if mounted {
				f.mounts[id] = m
			} else {
				f.dropped(m)
			}
			continue
		}
		file, err := f.files.use(id, nil) // counts as opened once: by EROFS, or its loop device
		if err != nil {
			continue // not ours
		}
		if mounted {
			_, _ = f.files.use(id, nil) // by the mount; it is known since the line above
			f.mounts[id] = &mount{id: id, file: file, ready: closedChannel, unused: time.Now()}
		}
	}
}

// forget removes what is left of an image that the kernel has no file of open.
func (f *FS) forget(file *file) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mounts[file.id] == nil {
		os.Remove(imagePath(f.o.Dir, file.id))
		f.server.log.forget(file.id)
	}
}

// Stats are an image's counts since this server has known it.
type Stats struct {
	Requests int64 // reads by the kernel
	Bytes    int64 // given to it
	Errors   int64 // answered with EIO
	InFlight int64 // now
}

// Stats gives the counts of an image, zeros if it is not there.
func (f *FS) Stats(id string) Stats {
	file := f.files.named(id)
	if file == nil {
		return Stats{}
	}
	return Stats{file.requests.Load(), file.bytes.Load(), file.errors.Load(), file.inFlight.Load()}
}

// Close unmounts everything, whoever still uses it: their reads of what is not
// in the page cache fail with EIO. It sends the holder away, waits for it and for
// all reads in flight, and may be called again.
func (f *FS) Close() error {
	f.close.Do(func() { f.final = f.shut() })
	return f.final
}

func (f *FS) shut() error {
	f.mu.Lock()
	f.closed = true
	var busy []chan struct{}
	for _, m := range f.mounts {
		busy = append(busy, m.ready)
	}
	f.mu.Unlock()
	f.stop() // reads fail from here on, and so nothing below waits for them
	for _, ready := range busy {
		<-ready // a mount in the making takes milliseconds, and must not appear behind our back
	}
	<-f.idle
	err := detachAll(f.o.Dir)
	f.server.wait()
	if f.keeper != nil {
		err = errors.Join(err, f.keeper.dismiss())
	}
	f.dev.close()
	for _, path := range []string{fuseDir(f.o.Dir), imagesDir(f.o.Dir), holderLock(f.o.Dir), holderSocket(f.o.Dir)} {
		os.Remove(path)
	}
	return err
}
