package server

import (
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/server/metrics"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
)

// gauges reads the parts for the metrics. It asks nothing of whoever may not answer.
type gauges struct {
	version, data string
	reserve       int64
	cache         *slab.Slab
	stores        *store.Workspaces
	origin        *origin
	others        *company
	profiles      *image.Profiles
	node          *node.Node
	calls         *scheduler.Scheduler
	keeper        *housekeeper
	scrub         *scrubber
}

func (g *gauges) read() metrics.Reading {
	r := metrics.Reading{
		Version: g.version,
		Cache:   g.cache.Stats(), Reserve: g.reserve, Scrub: g.cache.Coverage(),
		Mended: g.scrub.mended.Load(), Lost: g.scrub.lost.Load(),
		Store: g.stores.Stats(), Profiles: g.profiles.Stats(), Node: g.node.Stats(), Garbage: g.keeper.counted(), Calls: g.calls.Stats(),
	}
	if n := g.origin.network; n != nil {
		r.Network = &metrics.Network{Stats: n.Stats(), Up: n.Health().Up}
	}
	if g.others != nil {
		s := g.others.peers.Stats()
		r.Peers = &s
	}
	var st unix.Statfs_t
	if unix.Statfs(g.data, &st) == nil {
		r.DiskFree = int64(st.Bavail) * st.Bsize
	}
	return r
}
