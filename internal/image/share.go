package image

import (
	"context"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Share copies an image into the shared workspace under a name, so that "shared/NAME"
// is an image for everybody, and its files are stored once for all who build on
// it. The image of the workspace stays as it is. Everybody may read it from then on, and
// tell that some file is in it: it is for bases, not for secrets. Errors:
// fault.Invalid if the workspace may not (Options.MayShare).
// progress, if not nil, is told the bytes that are done, and of how many.
func (s *Images) Share(ctx context.Context, ref Ref, name string, progress func(done, total int64)) (*Image, Result, error) {
	if err := CheckRef(store.SharedWorkspace, name); err != nil {
		return nil, Result{}, err
	}
	if name == "" {
		return nil, Result{}, fault.New(fault.Invalid, "a shared image needs a name")
	}
	if !s.opt.MayShare(ref.Workspace) {
		return nil, Result{}, fault.New(fault.Invalid, "workspace %q may not share images", ref.Workspace)
	}
	img, err := s.Get(ctx, ref)
	if err != nil {
		return nil, Result{}, err
	}
	t, err := img.Tree(ctx)
	if err != nil {
		return nil, Result{}, err
	}
	blocks, err := img.Blocks(ctx)
	if err != nil {
		return nil, Result{}, err
	}
	shared, err := s.Store(store.SharedWorkspace)
	if err != nil {
		return nil, Result{}, err
	}
	release := shared.Hold()
	defer release()
	batch := shared.Begin(ctx)
	defer batch.Abort() // of no effect after write
	buf := make([]byte, store.ChunkSize)
	total := int64(0)
	for _, c := range blocks.Chunks() {
		total += int64(c.Size)
	}
	done := int64(0)
	for _, c := range blocks.Chunks() {
		if progress != nil {
			progress(done, total)
		}
		done += int64(c.Size)
		if err := blocks.load(ctx, c, buf[:c.Size]); err != nil {
			return nil, Result{}, img.wrap(err, "read")
		}
		if _, _, err := batch.Add(buf[:c.Size]); err != nil {
			return nil, Result{}, err
		}
	}
	copied, res, err := s.write(ctx, t, img.Config(), batch, store.SharedWorkspace, name)
	return copied, res, fault.Wrap(err, "share image", ref.Name)
}
