package server

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/build"
	"brisk.dev/brisk/internal/image/export"
	"brisk.dev/brisk/internal/image/importer"
	"brisk.dev/brisk/internal/image/registry"
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/store"
)

// imageAPI shows the registry of images, and what the node knows of them, as the
// API wants them.
type imageAPI struct {
	images   *image.Images
	keeper   *housekeeper
	profiles *image.Profiles
	node     *node.Node
	files    *lazyfs.FS
	cache    store.Cache
	builder  *build.Builder
	importer *importer.Importer
	temp     string // for layers on their way out
}

// List has the shared images at the end, under the names that they have for everybody.
func (a *imageAPI) List(ctx context.Context, workspace string) ([]api.ImageInfo, error) {
	all, err := a.all(ctx, workspace)
	if err != nil && all == nil {
		return nil, err
	}
	sharing := a.sharing(ctx, all)
	l := make([]api.ImageInfo, 0, len(all))
	for _, n := range all {
		info := infoOf(n.Image, n.Name)
		addSharing(&info, sharing)
		l = append(l, info)
	}
	return l, err
}

// all are the images that a workspace can use by name, and those of its own without one.
func (a *imageAPI) all(ctx context.Context, workspace string) ([]image.Named, error) {
	all, err := a.images.List(ctx, workspace)
	if err != nil || workspace == store.SharedWorkspace {
		return all, err
	}
	shared, err := a.images.List(ctx, store.SharedWorkspace)
	for _, n := range shared {
		if n.Name != "" {
			n.Name = store.SharedWorkspace + "/" + n.Name
			all = append(all, n)
		}
	}
	return all, err
}

// sharingTime is how long a listing waits for what it is not made for.
const sharingTime = 5 * time.Second

// sharing says what the images share, if that can be known in time.
func (a *imageAPI) sharing(ctx context.Context, all []image.Named) map[store.Digest]image.Sharing {
	images := make([]*image.Image, len(all))
	for i, n := range all {
		images[i] = n.Image
	}
	brief, cancel := context.WithTimeout(ctx, sharingTime)
	defer cancel()
	sharing, err := a.images.Sharing(brief, images)
	if err != nil && ctx.Err() == nil {
		a.keeper.log.Warn("nobody knows what images share", "err", err)
	}
	return sharing
}

func addSharing(i *api.ImageInfo, sharing map[store.Digest]image.Sharing) {
	if s, ok := sharing[i.Digest]; ok {
		i.OwnBytes, i.SharedBytes = &s.Own, &s.Shared
	}
}

func infoOf(i *image.Image, name string) api.ImageInfo {
	m := i.Manifest
	return api.ImageInfo{Name: name, Digest: i.Digest, Files: m.Files, Bytes: m.Bytes, Created: m.Created}
}

func (a *imageAPI) Inspect(ctx context.Context, ref image.Ref) (api.ImageDetail, error) {
	img, err := a.images.Get(ctx, ref)
	if err != nil {
		return api.ImageDetail{}, err
	}
	name := ref.Name
	if img.Digest.String()[:min(len(name), 64)] == name {
		name = "" // it was asked for by digest
	}
	d := api.ImageDetail{
		ImageInfo: infoOf(img, name),
		Config:    img.Config(),
		Chunks:    img.Manifest.Chunks.Count,
		Packs:     int64(len(img.Manifest.Packs)),
		Metadata:  img.Manifest.Meta.Size,
		Mounts:    a.mounts(img.Digest.String()),
	}
	d.Mounted = len(d.Mounts) > 0
	if all, err := a.all(ctx, ref.Workspace); err == nil {
		addSharing(&d.ImageInfo, a.sharing(ctx, all))
	}
	if l, err := img.Local(ctx, a.cache); err == nil { // else its chunk table is neither here nor to be had
		d.Local = &api.ImageLocal{Bytes: l.Bytes, Chunks: l.Chunks, TotalBytes: l.TotalBytes}
	}
	brief, cancel := context.WithTimeout(ctx, 2*time.Second) // the origin may be away
	defer cancel()
	known, err := a.profiles.List(brief, img.Workspace, img.Digest)
	if err != nil && ctx.Err() == nil {
		a.keeper.log.Warn("the profiles of an image cannot be listed", "image", img.Digest.Short(), "err", err)
	}
	for _, p := range known {
		d.Profiles = append(d.Profiles, api.ImageProfile{
			Entry: p.Entry.Label, Runs: int64(p.Runs) + int64(p.Partial), Chunks: int64(len(p.Chunks)), Bytes: p.Bytes(), Hot: int64(len(p.Hot)), Updated: p.Updated,
		})
	}
	if d.Mounted { // else asking would fetch its chunk table for nothing
		blocks, err := img.Blocks(ctx)
		if err != nil {
			return d, err
		}
		s := blocks.Stats()
		d.Read = &api.ImageReads{
			OriginBytes: s.OriginBytes, OriginChunks: s.OriginChunks,
			CacheBytes: s.CacheBytes, CacheChunks: s.CacheChunks,
		}
	}
	return d, nil
}

// mounts says how an image is mounted.
func (a *imageAPI) mounts(digest string) (l []string) {
	for _, id := range a.files.Mounted() {
		switch {
		case id == digest:
			l = append(l, "lazy")
		case strings.HasPrefix(id, digest) && !slices.Contains(l, "native"):
			l = append(l, "native")
		}
	}
	return l
}

// Remove lets the node give the image up first, if nothing runs on it.
func (a *imageAPI) Remove(ctx context.Context, ref image.Ref) error {
	img, err := a.images.Get(ctx, ref)
	if err != nil {
		return err
	}
	a.node.Unmount(img.Digest.String())
	if err := a.images.Remove(ctx, ref); err != nil {
		return err
	}
	// The disk is given back, also what the cache has of it. If that fails, the next collection does it.
	if _, _, err := a.keeper.discard(ctx, false); err != nil && ctx.Err() == nil {
		a.keeper.log.Warn("the cache keeps what only a removed image had", "err", err)
	}
	select {
	case a.keeper.removed <- struct{}{}:
	default:
	}
	return nil
}

func (a *imageAPI) Import(ctx context.Context, workspace string, q api.ImportRequest, progress func(done, total int64)) (api.ImportResult, error) {
	r, err := a.importer.Import(ctx, importer.Request{Path: q.Path, Tag: q.Tag, Workspace: workspace, Name: q.Name}, progress)
	if err != nil {
		return api.ImportResult{}, err
	}
	return importResult(r), nil
}

func (a *imageAPI) Pull(ctx context.Context, workspace string, q api.PullRequest, progress func(done, total int64)) (api.ImportResult, error) {
	r, err := a.importer.Pull(ctx, importer.PullRequest{
		Ref: q.Ref, Workspace: workspace, Name: q.Name, Insecure: q.Insecure, Auth: q.Auth,
	}, progress)
	if err != nil {
		return api.ImportResult{}, err
	}
	return importResult(r), nil
}

func (a *imageAPI) Share(ctx context.Context, workspace string, q api.ShareRequest, progress func(done, total int64)) (api.ImportResult, error) {
	began := time.Now()
	img, r, err := a.images.Share(ctx, image.Ref{Workspace: workspace, Name: q.Ref}, q.Name, progress)
	if err != nil {
		return api.ImportResult{}, err
	}
	return api.ImportResult{
		Digest: img.Digest, Name: store.SharedWorkspace + "/" + q.Name, Files: r.Files, Bytes: r.Bytes, Chunks: r.Chunks,
		NewChunks: r.NewChunks, NewBytes: r.NewBytes, MS: float64(time.Since(began).Microseconds()) / 1000, Kind: "share",
	}, nil
}

func importResult(r importer.Report) api.ImportResult {
	return api.ImportResult{
		Digest: r.Digest, Name: r.Name, Files: r.Files, Bytes: r.Bytes, Chunks: r.Chunks,
		NewChunks: r.NewChunks, NewBytes: r.NewBytes, MS: r.MS, Kind: string(r.Kind), Skipped: r.Skipped,
		Layers: r.Layers, KnownLayers: r.KnownLayers, ReadBytes: r.ReadBytes, Source: r.Source,
	}
}

func (a *imageAPI) Push(ctx context.Context, workspace string, q api.PushRequest, progress func(done, total int64)) (api.ExportResult, error) {
	began := time.Now()
	ref, err := registry.ParseRef(q.Ref, q.Insecure)
	if err != nil {
		return api.ExportResult{}, err
	}
	auth := registry.Auth{}
	switch {
	case q.Auth != nil:
		auth = *q.Auth
	case workspace == image.DefaultWorkspace: // the machine's owner's; others' are not his
		if auth, err = registry.FindAuth(ref); err != nil {
			return api.ExportResult{}, err
		}
	}
	img, x, err := a.exporter(ctx, workspace, q.Image)
	if err != nil {
		return api.ExportResult{}, err
	}
	to, err := a.importer.Client.Open(ctx, ref, auth, registry.Push)
	if err != nil {
		return api.ExportResult{}, err
	}
	defer to.Close()
	r, err := x.Push(ctx, img, to, export.Options{Compression: export.Compression(q.Compression)}, progress)
	r.MS = float64(time.Since(began).Microseconds()) / 1000
	return r, err
}

func (a *imageAPI) Export(ctx context.Context, workspace string, q api.ExportRequest, w io.Writer, progress func(done, total int64)) (r api.ExportResult, err error) {
	began := time.Now()
	img, x, err := a.exporter(ctx, workspace, q.Image)
	if err != nil {
		return r, err
	}
	switch q.Format {
	case "", "oci":
		r, err = x.Archive(ctx, img, w, export.Options{Name: q.Image, Compression: export.Compression(q.Compression)}, progress)
	case "tar":
		r, err = x.Tar(ctx, img, w, progress)
	default:
		err = fault.New(fault.Invalid, "the format %q is not known: want oci or tar", q.Format)
	}
	r.MS = float64(time.Since(began).Microseconds()) / 1000
	return r, err
}

func (a *imageAPI) exporter(ctx context.Context, workspace, name string) (*image.Image, *export.Exporter, error) {
	img, err := a.images.Get(ctx, image.Ref{Workspace: workspace, Name: name})
	if err != nil {
		return nil, nil, err
	}
	return img, &export.Exporter{Chunks: img, TempDir: a.temp}, nil
}

func (a *imageAPI) Diff(ctx context.Context, workspace string, q api.DiffRequest) (*image.Difference, error) {
	first, err := a.images.Get(ctx, image.Ref{Workspace: workspace, Name: q.A})
	if err != nil {
		return nil, err
	}
	second, err := a.images.Get(ctx, image.Ref{Workspace: workspace, Name: q.B})
	if err != nil {
		return nil, err
	}
	return image.Diff(ctx, first, second)
}
