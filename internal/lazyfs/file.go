package lazyfs

import (
	"context"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"brisk.dev/brisk/internal/fault"
)

// BlockReader is an image's data: what its EROFS metadata calls the external
// device. Safe for concurrent use.
type BlockReader interface {
	// Size gives the length in bytes; it never changes.
	Size() int64
	// ReadAt fills p, which lies within Size, from off or fails. It must
	// return soon after ctx is done, and must not keep p.
	ReadAt(ctx context.Context, p []byte, off int64) error
}

// Image is what lazyfs needs to know of an image.
//
// Mounted lazily, its data comes from Blocks, which stay in use as long as it is
// mounted anywhere, the mount namespaces of sandboxes included; of several that
// come with Mounts of one image, the first is used.
//
// Mounted natively, its data lies in the file Device, at the addresses in Meta: all
// of it, for as long as anybody has the mount. Nobody notices what is missing.
type Image struct {
	// ID names the mount, and the file: 16 to 64 lower-case hexadecimal digits of the
	// image's digest. That of a native mount goes on with a dash and digits that
	// stand for the places of the data, so that one image may be mounted both ways,
	// and again when its data lies elsewhere.
	ID     string
	Meta   string // absolute host path of the plain EROFS metadata, which stays while it is mounted
	Blocks BlockReader
	Device string // absolute host path of the file with the data; "" = mount lazily
}

func (i *Image) native() bool { return i.Device != "" }

// check is whether the image can be mounted, as far as one can tell without doing it.
func (i *Image) check() error {
	switch {
	case i.native() != isNative(i.ID):
		return fault.New(fault.Invalid, "%q cannot be the name of this kind of mount", i.ID)
	case i.native() && !filepath.IsAbs(i.Device) || strings.ContainsAny(i.Device, ",\n"):
		return fault.New(fault.Invalid, "%q cannot be mounted: want an absolute path without commas", i.Device)
	case !i.native() && (i.Blocks == nil || i.Blocks.Size() < 0):
		return fault.New(fault.Invalid, "image %s has no blocks", i.ID)
	}
	return nil
}

// isNative tells the IDs of native mounts.
func isNative(id string) bool {
	digest, place, found := strings.Cut(id, "-")
	_, err := nodeOf(digest)
	_, errPlace := nodeOf(place)
	return found && err == nil && errPlace == nil
}

const blockSize = 4096

// nodeOf derives the FUSE node of an image, so that a successor knows it without
// having been asked for the name. The top bit keeps it away from the root's.
func nodeOf(id string) (uint64, error) {
	b, err := hex.DecodeString(id)
	if err != nil || len(b) < 8 || len(b) > 32 || strings.ToLower(id) != id {
		return 0, fault.New(fault.Invalid, "%q is not an image: want 16 to 64 lower-case hexadecimal digits", id)
	}
	var node uint64
	for _, c := range b[:8] {
		node = node<<8 | uint64(c)
	}
	return node | 1<<63, nil
}

// file is one image's file in the FUSE directory.
type file struct {
	id     string
	node   uint64
	budget *semaphore.Weighted // bytes of its READs that are being served

	requests, bytes, errors atomic.Int64
	inFlight                atomic.Int64

	find chan struct{} // holds a token; whoever has it may look the image up
	mu   sync.Mutex
	img  *Image // nil until it is mounted or looked up
	uses int    // opens by the kernel, and mounts of ours; at 0 the file may go
}

// size as the kernel sees it: whole blocks, since that is how EROFS reads. What
// lies behind the image's own end belongs to no file and reads as zeros.
func (i *Image) size() int64 { return (i.Blocks.Size() + blockSize - 1) &^ (blockSize - 1) }

// image gives the file's image, looked up if a predecessor mounted it.
func (f *file) image(ctx context.Context, lookup func(context.Context, string) (Image, error)) (*Image, error) {
	f.mu.Lock()
	img := f.img
	f.mu.Unlock()
	if img != nil {
		return img, nil
	}
	if lookup == nil {
		return nil, fault.New(fault.NotFound, "image %s was mounted by an earlier server, and nobody can find it", f.id)
	}
	select {
	case <-f.find:
		defer func() { f.find <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	img = f.img
	f.mu.Unlock()
	if img != nil {
		return img, nil
	}
	found, err := lookup(ctx, f.id)
	if err != nil {
		return nil, fault.Wrap(err, "find mounted image", f.id)
	}
	if found.Blocks == nil {
		return nil, fault.New(fault.Internal, "image %s was found without its blocks", f.id)
	}
	f.learn(&found)
	return &found, nil
}

// learn tells a file that an earlier server mounted what its image is.
func (f *file) learn(img *Image) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.img == nil {
		f.img = img
	}
}

// files is the flat directory: the images that the kernel may ask for.
type files struct {
	budget int64
	mu     sync.Mutex
	byNode map[uint64]*file
}

// use gives the file of an image, made if need be, with one more use.
func (d *files) use(id string, img *Image) (*file, error) {
	node, err := nodeOf(id)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.byNode[node]
	if f == nil {
		f = &file{id: id, node: node, budget: semaphore.NewWeighted(d.budget), find: make(chan struct{}, 1)}
		f.find <- struct{}{}
		d.byNode[node] = f
	}
	if f.id != id {
		return nil, fault.New(fault.Exists, "images %s and %s begin with the same digits", f.id, id)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uses++
	if f.img == nil {
		f.img = img
	}
	return f, nil
}

// open adds a use of the kernel's to a file that is there.
func (d *files) open(node uint64) *file {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.byNode[node]
	if f != nil {
		f.mu.Lock()
		f.uses++
		f.mu.Unlock()
	}
	return f
}

// drop takes a use back; with the last one the file goes. It reports whether it went.
func (d *files) drop(f *file) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uses--
	if f.uses > 0 || d.byNode[f.node] != f {
		return false
	}
	delete(d.byNode, f.node)
	return true
}

func (d *files) get(node uint64) *file {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byNode[node]
}

func (d *files) named(id string) *file {
	node, err := nodeOf(id)
	if err != nil {
		return nil
	}
	if f := d.get(node); f != nil && f.id == id {
		return f
	}
	return nil
}

// list gives the files by name.
func (d *files) list() []*file {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*file, 0, len(d.byNode))
	for _, f := range d.byNode {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *file) int { return strings.Compare(a.id, b.id) })
	return all
}
