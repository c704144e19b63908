package importer

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/layers"
	"brisk.dev/brisk/internal/store"
)

// parallelLayers is how many layers are read at once: one is bound by its
// decompression, which one core does, and by the latency of its registry.
const parallelLayers = 4

// maxLayers bounds the layers of an image; docker makes 127 at most.
const maxLayers = 1000

// container imports a container image, unless it is there already.
func (im *Importer) container(ctx context.Context, r Request, kind Kind, c *container, progress Progress) (Report, error) {
	if len(c.layers) > maxLayers {
		return Report{}, fault.New(fault.Invalid, "it has %d layers, and more than %d cannot be read", len(c.layers), maxLayers)
	}
	distinct := c.distinct()
	work := workKey(r.Workspace, c)
	if report, ok, err := im.recall(ctx, r, work); ok || err != nil {
		report.Kind, report.Layers, report.KnownLayers = kind, len(distinct), len(distinct)
		return report, err
	}
	im, remove, err := im.withLayers()
	if err != nil {
		return Report{}, err
	}
	defer remove()
	var total int64
	for _, i := range distinct {
		total += c.layers[i].size
	}
	rd := reading{im: im, workspace: r.Workspace, meter: newMeter(ctx, total, progress)}
	report, err := im.build(ctx, r, kind, c.config, func(t *image.Tree, batch *store.Batch) error {
		rd.batch = batch
		return rd.all(ctx, c, distinct, t)
	})
	if err != nil {
		return report, err
	}
	report.Layers, report.KnownLayers, report.ReadBytes = len(distinct), rd.known, rd.read
	return report, im.remember(work, report.Digest)
}

// distinct lists the layers that differ, by their first index. Builders repeat the empty one.
func (c *container) distinct() (l []int) {
	seen := map[v1.Hash]bool{}
	for i, layer := range c.layers {
		if !seen[layer.diffID] {
			seen[layer.diffID] = true
			l = append(l, i)
		}
	}
	return l
}

// workKey names the import of a container image: version, workspace, and the
// digest of the configuration, which covers the content of every layer.
func workKey(workspace string, c *container) store.Digest {
	return store.Sum(fmt.Appendf(nil, "brisk import 1\n%s\n%s\n", workspace, c.id))
}

func (im *Importer) remember(work, made store.Digest) error {
	if im.Memo == nil {
		return nil
	}
	return im.Memo.Put(work, made)
}

// recall finds the image that an earlier import made, and gives it the name.
func (im *Importer) recall(ctx context.Context, r Request, work store.Digest) (Report, bool, error) {
	if im.Memo == nil {
		return Report{}, false, nil
	}
	img, err := im.Memo.Recall(ctx, im.Images, r.Workspace, work)
	if err != nil || img == nil {
		return Report{}, false, err
	}
	if r.Name != "" {
		err = im.Images.Tag(ctx, image.Ref{Workspace: r.Workspace, Name: img.Digest.String()}, r.Name)
		if fault.Is(err, fault.NotFound) { // somebody has just removed it
			return Report{}, false, nil
		}
		if err != nil {
			return Report{}, false, err
		}
	}
	m := &img.Manifest
	return Report{Digest: img.Digest, Files: m.Files, Bytes: m.Bytes, Chunks: m.Chunks.Count}, true, nil
}

// withLayers is the importer with a place for lists of layers: a temporary one if it has none.
func (im *Importer) withLayers() (_ *Importer, remove func(), err error) {
	if im.Layers != nil {
		return im, func() {}, nil
	}
	dir, err := os.MkdirTemp(im.TempDir, "brisk-layers-")
	if err != nil {
		return nil, nil, store.DiskError(err, "make a temporary directory in", im.tempDir())
	}
	own := *im
	if own.Layers, err = layers.Open(dir, layers.DefaultLimit); err != nil {
		os.RemoveAll(dir)
		return nil, nil, err
	}
	return &own, func() { os.RemoveAll(dir) }, nil
}

// reading is the layers of one image being read.
type reading struct {
	im        *Importer
	workspace string
	batch     *store.Batch
	meter     *meter

	mu    sync.Mutex
	known int   // layers
	read  int64 // bytes of the others
}

// all reads layers, several at a time, and applies each when those below it are there.
func (rd *reading) all(ctx context.Context, c *container, distinct []int, t *image.Tree) error {
	group, ctx := errgroup.WithContext(ctx)
	lists := map[v1.Hash]*layers.List{}
	ready := map[v1.Hash]chan *layers.List{}
	for _, i := range distinct {
		ready[c.layers[i].diffID] = make(chan *layers.List, 1)
	}
	defer func() {
		for id, ch := range ready {
			select {
			case l := <-ch:
				l.Close()
			default:
			}
			if lists[id] != nil {
				lists[id].Close()
			}
		}
	}()
	group.Go(func() error {
		readers, ctx := errgroup.WithContext(ctx)
		readers.SetLimit(parallelLayers)
		for _, i := range distinct {
			readers.Go(func() error {
				list, err := rd.list(ctx, c.layers[i])
				if err != nil {
					return fmt.Errorf("layer %d of %d: %w", i+1, len(c.layers), err)
				}
				ready[c.layers[i].diffID] <- list
				return nil
			})
		}
		return readers.Wait()
	})
	group.Go(func() error {
		for i, l := range c.layers {
			if lists[l.diffID] == nil {
				select {
				case lists[l.diffID] = <-ready[l.diffID]:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if err := lists[l.diffID].Each(t.NewLayer().Apply); err != nil {
				return fmt.Errorf("layer %d of %d: %w", i+1, len(c.layers), err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// list gives what a layer says, from an earlier import if all of its content is still
// in the store.
func (rd *reading) list(ctx context.Context, l layer) (*layers.List, error) {
	var id layers.ID
	if _, err := hex.Decode(id[:], []byte(l.diffID.Hex)); err != nil {
		return nil, fault.New(fault.Invalid, "the digest %q of a layer is not a SHA-256", l.diffID)
	}
	known, err := rd.im.Layers.Get(rd.workspace, id)
	if err != nil {
		return nil, err
	}
	if known != nil {
		err := rd.relyOn(ctx, known)
		if err == nil {
			rd.count(1, 0)
			rd.meter.add(l.size)
			return known, nil
		}
		known.Close()
		if !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Corrupt) {
			return nil, err
		}
		if err := rd.im.Layers.Drop(rd.workspace, id); err != nil {
			return nil, err
		}
	}
	w, err := rd.im.Layers.NewWriter()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if err := l.read(ctx, rd.batch, rd.meter, w.Add); err != nil {
		return nil, err
	}
	list, err := w.Finish()
	if err != nil {
		return nil, err
	}
	if err := rd.im.Layers.Keep(rd.workspace, id, list); err != nil {
		list.Close()
		return nil, err
	}
	rd.count(0, l.size)
	return list, nil
}

func (rd *reading) count(known int, read int64) {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	rd.known += known
	rd.read += read
}

// relyOn makes the chunks of a list ones of the batch; NotFound if one is not stored.
func (rd *reading) relyOn(ctx context.Context, list *layers.List) error {
	return list.Each(func(e *image.LayerEntry) error {
		if e.Node == nil {
			return ctx.Err()
		}
		for _, c := range e.Node.Chunks {
			if err := rd.batch.Use(c); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}
