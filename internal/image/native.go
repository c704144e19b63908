package image

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
)

// Slab is what native images need of the machine's cache, package slab.
type Slab interface {
	// Place says where chunks lie for as long as owner has them pinned, or fails
	// if one is missing or damaged.
	Place(owner string, chunks []store.Chunk) (slab.Placement, error)
	// Owners are those who have something pinned, also from before a restart.
	Owners() []string
	Unpin(owner string)
}

// NativeImage is an image whose chunks are all in the slab, as lazyfs mounts it
// over the slab's file. The fields are those of lazyfs.Image.
type NativeImage struct {
	ID, Meta, Device string

	release func()
}

// Release says that the image has been mounted, or will not be: from then on it
// is the mount that keeps its chunks in the slab. Further calls do nothing.
func (n *NativeImage) Release() { n.release() }

// nativeImages is what the registry knows of native images.
type nativeImages struct {
	sync.Mutex
	held    map[string]int      // by owner: results of Native that were not released
	written map[string]struct{} // paths of metadata that this process has compared or written
}

const (
	nativeOwner  = "native/" // begins the owners of native images in the slab
	nativeSuffix = ".erofs"
)

// owner is the image's name in the slab.
func (i *Image) owner() string { return nativeOwner + i.Workspace + "/" + i.Digest.String() }

// Native places all of the image's chunks in the slab and makes the metadata
// that addresses them there, DIR/WORKSPACE/native/DIGEST-PLACES.erofs. PLACES stands for
// where the chunks lie, in which slab; so a file is never changed, and mounts of it
// stay right when there is another.
//
// The chunks stay where they are until FreeNative finds that nobody uses any
// metadata of the image's. If chunks are missing the error is Place's.
//
// It blocks on Place, which may have to read everything after a crash, and the
// first time for some 20 ms on the disk.
func (i *Image) Native(ctx context.Context, cache Slab) (_ *NativeImage, err error) {
	blocks, err := i.Blocks(ctx)
	if err != nil {
		return nil, err
	}
	release := i.images.holdNative(i.owner())
	defer func() {
		if err != nil {
			release()
		}
	}()
	at, err := cache.Place(i.owner(), blocks.dev.chunks)
	if err != nil {
		return nil, i.wrap(err, "mount natively")
	}
	p, err := newPlaces(blocks.dev, at)
	if err != nil {
		return nil, i.wrap(err, "mount natively")
	}
	n := &NativeImage{ID: i.Digest.String() + "-" + p.name, Device: at.File, release: release}
	n.Meta = filepath.Join(i.images.nativeDir(i.Workspace), n.ID+nativeSuffix)
	if err = i.writeNative(ctx, n.Meta, p); err != nil {
		return nil, i.wrap(err, "mount natively")
	}
	return n, nil
}

// writeNative makes sure that the relocated metadata is at path. What an earlier
// process has left there is compared, not trusted.
func (i *Image) writeNative(ctx context.Context, path string, p *places) error {
	known := &i.images.native
	known.Lock()
	_, ok := known.written[path]
	known.Unlock()
	if ok {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	meta, err := i.blob(ctx, i.Manifest.Meta.Digest, i.Manifest.Meta.Size)
	if err != nil {
		return err
	}
	want, err := erofs.Relocate(meta, p.size, p.of)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err != nil || !slices.Equal(have, want) {
		if err := publish(path, want); err != nil {
			return err
		}
	}
	known.Lock()
	known.written[path] = struct{}{}
	known.Unlock()
	return nil
}

// places is a placement of an image's device.
type places struct {
	dev    *device
	blocks []uint32
	size   uint32 // blocks of the slab's file up to the end of the last chunk
	name   string // 16 hexadecimal digits
	next   int    // the chunk whose address will probably be asked for next
}

func newPlaces(dev *device, at slab.Placement) (*places, error) {
	p := &places{dev: dev, blocks: at.Blocks}
	if len(at.Blocks) != len(dev.chunks) {
		return nil, fault.New(fault.Internal, "the slab gave places of %d chunks for %d", len(at.Blocks), len(dev.chunks))
	}
	h := blake3.New()
	var b [4]byte
	for i, block := range at.Blocks {
		if block == slab.Hole {
			return nil, fault.New(fault.Internal, "chunk %s has no place in the slab", dev.chunks[i])
		}
		p.size = max(p.size, block+blocksOf(dev.chunks[i].Size))
		binary.LittleEndian.PutUint32(b[:], block)
		_, _ = h.Write(b[:])
	}
	// A slab that is made anew has another header.
	f, err := os.Open(at.File)
	if err != nil {
		return nil, fault.Wrap(err, "open", at.File)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fault.Wrap(err, "open", at.File)
	}
	if st.Size() < int64(p.size)*store.BlockSize {
		return nil, fault.New(fault.Internal, "the slab has %d bytes and places up to block %d", st.Size(), p.size)
	}
	if _, err := io.CopyN(h, f, min(st.Size(), store.BlockSize)); err != nil {
		return nil, fault.Wrap(err, "read", at.File)
	}
	p.name = hex.EncodeToString(h.Sum(nil)[:8])
	return p, nil
}

// of gives the place of the chunk at an address of the device. A piece of a file
// that is no whole chunk would end in somebody else's.
func (p *places) of(addr, size uint32) (uint32, error) {
	if p.next >= len(p.blocks) || p.dev.starts[p.next] != addr {
		if addr >= p.dev.blocks() {
			return 0, fault.New(fault.Corrupt, "the metadata names block %d of a device of %d", addr, p.dev.blocks())
		}
		p.next = p.dev.at(addr)
	}
	i := p.next
	if p.dev.starts[i] != addr || p.dev.chunks[i].Size != size {
		return 0, fault.New(fault.Corrupt, "the metadata names %d bytes at block %d, which are no chunk of the chunk table's", size, addr)
	}
	p.next++
	return p.blocks[i], nil
}

func (s *Images) nativeDir(workspace string) string {
	return filepath.Join(s.opt.Dir, workspace, "native")
}

// holdNative keeps FreeNative away from an owner's pins until the result is called.
func (s *Images) holdNative(owner string) (release func()) {
	n := &s.native
	n.Lock()
	defer n.Unlock()
	n.held[owner]++
	return sync.OnceFunc(func() {
		n.Lock()
		defer n.Unlock()
		if n.held[owner]--; n.held[owner] == 0 {
			delete(n.held, owner)
		}
	})
}

// FreeNative gives up the pins and the metadata of native images that nobody uses,
// and returns how many it gave up. Whether a mount is there, in whatever mount
// namespace, the kernel says: it has the metadata open. So this is right as well
// after a crash, for mounts that outlived their server. It must have been called
// before anything is evicted for the pins of the dead to be of no harm, and may be
// called at any time.
func (s *Images) FreeNative(cache Slab) (freed int) {
	owners := map[string]bool{}
	for _, o := range cache.Owners() {
		owners[o] = strings.HasPrefix(o, nativeOwner)
	}
	workspaces, err := s.workspaces()
	if err != nil {
		s.log.Warn("native images cannot be listed", "error", err)
		return 0
	}
	for _, w := range workspaces {
		for _, name := range s.nativeFiles(w, "") {
			digest, _, _ := strings.Cut(name, "-")
			owners[nativeOwner+w+"/"+digest] = true
		}
	}
	for o, ours := range owners {
		if ours && s.freeNative(cache, o) {
			freed++
		}
	}
	return freed
}

// nativeFiles lists the native metadata of images whose digest begins so.
func (s *Images) nativeFiles(workspace, digest string) (names []string) {
	entries, _ := os.ReadDir(s.nativeDir(workspace)) // none: none
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), digest) && strings.Contains(e.Name(), "-") && strings.HasSuffix(e.Name(), nativeSuffix) {
			names = append(names, e.Name())
		}
	}
	return names
}

// freeNative removes what of an owner's files nobody uses, and unpins if that is all.
func (s *Images) freeNative(cache Slab, owner string) bool {
	s.native.Lock() // whoever holds from here on places again
	defer s.native.Unlock()
	if s.native.held[owner] > 0 {
		return false
	}
	workspace, digest, _ := strings.Cut(strings.TrimPrefix(owner, nativeOwner), "/")
	free := true
	for _, name := range s.nativeFiles(workspace, digest) {
		path := filepath.Join(s.nativeDir(workspace), name)
		used, err := opened(path)
		if err != nil {
			s.log.Warn("it cannot be told whether a native image is in use, so its chunks stay", "path", path, "error", err)
		}
		if used || err != nil {
			free = false
			continue
		}
		delete(s.native.written, path)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Warn("metadata of a native image cannot be removed", "path", path, "error", err)
		}
	}
	if free {
		cache.Unpin(owner)
	}
	return free
}

// opened reports whether anybody else has a file open, a mount of the kernel's
// being one: the kernel gives a write lease only to those who are alone.
func opened(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	switch _, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); {
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	case err != nil:
		return false, &os.PathError{Op: "lease", Path: path, Err: err}
	}
	// A lease that outlived this, in a child that is about to exec, would make the
	// next to open the file wait for its end.
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return false, err
}
