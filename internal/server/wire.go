package server

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/api/blobs"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/build"
	"brisk.dev/brisk/internal/image/importer"
	"brisk.dev/brisk/internal/image/layers"
	"brisk.dev/brisk/internal/image/memo"
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/sandbox/gvisor"
	"brisk.dev/brisk/internal/sandbox/network"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/server/metrics"
	"brisk.dev/brisk/internal/snapshot"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	sdk "brisk.dev/brisk/sdk/python"
)

// wire builds the parts from the ground up; the order is that of the floors.
// Opening a part sweeps what a predecessor left of it.
func wire(ctx context.Context, o Options, p Paths, log *slog.Logger) (_ *parts, err error) {
	built := &parts{}
	defer func() {
		if err != nil {
			_ = built.close(context.WithoutCancel(ctx), log)
		}
	}()
	part := func(name string) *slog.Logger { return log.With("part", name) }
	data := func(names ...string) string { return filepath.Join(append([]string{p.Data}, names...)...) }

	runsc, err := FindRunsc(o.Runsc)
	if err != nil {
		return nil, err
	}
	if err := sdk.Extract(SDKDir(p)); err != nil {
		return nil, err
	}
	uploads, err := blobs.Open(data("blobs"))
	if err != nil {
		return nil, err
	}

	// Bytes.
	origin, err := openOrigin(ctx, p, o.Store, part("origin"))
	if err != nil {
		return nil, err
	}
	built.later("origin", func(context.Context) error { origin.close(); return nil })
	limit := o.Cache
	if limit == 0 {
		limit = cacheLimit(p.Data)
	}
	reserve := cacheReserve(p.Data)
	cache, err := slab.Open(slab.Options{Dir: data("cache"), Limit: limit, Reserve: reserve, Log: part("slab")})
	if err != nil {
		return nil, err
	}
	built.later("cache", func(context.Context) error { return cache.Close() })
	keyring, err := openKeyring(p)
	if err != nil {
		return nil, err
	}
	others, err := openCompany(ctx, o, p, keyring, origin.place, part)
	if err != nil {
		return nil, err
	}
	if others != nil {
		built.later("cluster", func(context.Context) error { others.close(); return nil })
	}
	stores, err := store.OpenWorkspaces(ctx, store.WorkspacesOptions{
		Dir: data("cache", "packs"), Origin: origin.Origin, Cache: cache, Keyring: keyring,
		Peers: others.storePeers(), MakeKeys: others.makeKeys(),
		// A bucket is somebody else's machine. A directory is as good as the cache, which is plain.
		Sealed: origin.place.Bucket != nil, Shared: !origin.place.Own, Log: part("store"),
	})
	if err != nil {
		return nil, err
	}
	built.later("stores", func(context.Context) error { return stores.Close() })
	if _, err := stores.Store(image.DefaultWorkspace); err != nil { // a key may be missing
		return nil, err
	}
	others.begin(stores)

	// Images. What is mounted is known only to the node, which comes later.
	var machine *node.Node
	images, err := image.Open(ctx, image.Options{
		Dir: data("images"), Stores: stores, Log: part("images"),
		InUse: func(d store.Digest) bool { return machine.InUse(d.String()) },
	})
	if err != nil {
		return nil, err
	}
	imports, err := memo.Open(data("build", "imports"))
	if err != nil {
		return nil, err
	}
	known, err := layers.Open(data("layers"), layers.DefaultLimit)
	if err != nil {
		return nil, err
	}

	// Files.
	self, err := os.Executable()
	if err != nil {
		return nil, fault.Wrap(err, "find", "brisk's own binary")
	}
	files, err := lazyfs.Open(ctx, lazyfs.Options{
		Dir: p.Run, Holder: []string{self, "holder"}, Compat: o.Compat, Log: part("lazyfs"),
		Keep:   time.Minute, // the node keeps what may be used again
		Lookup: func(ctx context.Context, id string) (lazyfs.Image, error) { return lookup(ctx, images, id) },
	})
	if err != nil {
		return nil, err
	}
	built.later("mounts", func(context.Context) error { return files.Close() })

	// Sandboxes.
	runtime, err := gvisor.New(gvisor.Options{
		Runsc: runsc, Dir: filepath.Join(p.Run, "runsc"), Scratch: data("scratch"),
		CgroupParent: "/brisk/" + filepath.Base(p.Run), Log: part("sandbox"),
	})
	if err != nil {
		return nil, err
	}
	built.later("sandboxes", func(context.Context) error { return runtime.Close() })
	networks, err := network.Open(ctx, network.Options{Dir: filepath.Join(p.Run, "netns"), Log: part("network")})
	if err != nil {
		return nil, err
	}
	built.later("network", networks.Close)

	// Instances.
	code, err := function.OpenCode(data("code"), uploads)
	if err != nil {
		return nil, err
	}
	// What starts read. Hot packs are for machines that have nothing of an image: there are none
	// if the origin is this machine's own.
	var busy func() int
	profiles := image.OpenProfiles(image.ProfilesOptions{
		Store: func(workspace string) (image.ProfileStore, error) { return stores.Store(workspace) },
		Hot:   !origin.place.Own, Idle: func() bool { return busy() == 0 }, Log: part("profiles"),
	})
	built.later("profiles", func(context.Context) error { return profiles.Close() })
	machine, err = node.Open(ctx, node.Options{
		ID: o.Node, Run: p.Run, SDK: SDKDir(p), Images: images, FS: files, Runtime: runtime,
		Network: networks, Code: code, Blobs: uploads, Log: part("node"),
		Slab: cache, Fill: !o.NoFill, Profiles: profiles,
	})
	if err != nil {
		return nil, err
	}
	built.later("node", func(context.Context) error { machine.Close(); return nil })
	incoming := &importer.Importer{Images: images, Memo: imports, TempDir: data("scratch"), Layers: known}
	builder, err := build.New(build.Options{
		Images: images, Dir: data("build"), Executor: machine, Blobs: openBlob(uploads), Containers: containers{incoming}, Log: part("build"),
		Share: !origin.place.Own,
	})
	if err != nil {
		return nil, err
	}
	built.later("builder", func(context.Context) error { return builder.Close() })
	snapshots, err := snapshot.Open(data("snapshots"), part("snapshot"))
	if err != nil {
		return nil, err
	}
	calls, err := scheduler.Open(scheduler.Options{
		Dir: p.Data, Node: scheduler.OnNode(machine), Snapshots: snapshots, SDK: sdk.Digest(),
		Created: o.Pool, Log: part("scheduler"),
	})
	if err != nil {
		return nil, err
	}
	built.quiesce = calls.Close
	busy = calls.Active

	scrub := &scrubber{cache: cache, stores: stores, files: files, log: part("slab")}
	scrub.begin()
	built.later("scrub", func(context.Context) error { scrub.close(); return nil })
	saving := &thrift{active: calls.Active}
	saving.begin()
	built.later("memory", func(context.Context) error { saving.close(); return nil })
	keeper := &housekeeper{
		scrub:  scrub,
		images: images, calls: calls, snapshots: snapshots, code: code, uploads: uploads, cache: cache, files: files,
		memos: []*memo.Memo{imports, builder.Memo()}, sdks: filepath.Dir(SDKDir(p)), sdk: SDKDir(p),
		limit: cacheLimit(p.Data), log: part("gc"),
	}
	keeper.begin()
	built.later("gc", func(context.Context) error { keeper.close(); return nil })
	pictures := &imageAPI{
		keeper: keeper,
		images: images, node: machine, files: files, cache: cache, builder: builder,
		temp:     data("scratch"),
		profiles: profiles,
		importer: incoming,
	}
	measured := &gauges{
		version: o.Version, data: p.Data, reserve: reserve, cache: cache, stores: stores, origin: origin, others: others,
		profiles: profiles, node: machine, calls: calls, keeper: keeper, scrub: scrub,
	}
	built.backend = api.Backend{
		Metrics:   metrics.New(measured.read),
		Functions: calls, History: calls, Images: pictures, Builder: pictures, Importer: pictures, Exchange: pictures, Blobs: uploads,
		Stats: &storeAPI{data: p.Data, images: images, origin: origin, cache: cache, others: others},
		Nodes: nodeAPI{others}, Housekeeper: keeper,
	}
	built.active = func() int {
		n := calls.Active()
		live, err := calls.Instances(context.Background(), image.DefaultWorkspace)
		if err != nil {
			return 1
		}
		for _, i := range live {
			if i.State != "created" { // those only wait for calls, for as long as the server is there
				n++
			}
		}
		return n
	}
	return built, nil
}

// lookup finds the image of a mount that an earlier server made.
func lookup(ctx context.Context, images *image.Images, id string) (lazyfs.Image, error) {
	img, err := images.Get(ctx, image.Ref{Workspace: image.DefaultWorkspace, Name: id})
	if err != nil {
		return lazyfs.Image{}, err
	}
	meta, err := img.MetaPath(ctx)
	if err != nil {
		return lazyfs.Image{}, err
	}
	blocks, err := img.Blocks(ctx)
	if err != nil {
		return lazyfs.Image{}, err
	}
	return lazyfs.Image{ID: id, Meta: meta, Blocks: blocks}, nil
}
