package metrics

import (
	"time"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/peer"
	"brisk.dev/brisk/internal/store/remote"
	"brisk.dev/brisk/internal/store/slab"
)

// Reading is what the parts of a server say of themselves at one moment. Counts are
// since the server's start.
type Reading struct {
	Version string // Brisk's

	Cache    store.CacheStats
	Reserve  int64 // bytes of the disk that the cache leaves free
	DiskFree int64 // bytes, where the data directory lies
	Scrub    slab.Coverage
	Mended   int64 // damaged chunks below native mounts that were fetched again,
	Lost     int64 // and that could not be

	Store   store.Stats // of all workspaces together
	Network *Network    // nil: the store is a directory
	Peers   *peer.Stats // nil: the machine is in no cluster

	Profiles image.ProfileStats
	Node     node.Stats
	Garbage  Garbage
	Calls    scheduler.Stats
}

// Network is an origin that is reached over one.
type Network struct {
	remote.Stats
	Up bool // it answers, as far as is known; else requests are refused at once
}

// Garbage is what collections have done.
type Garbage struct {
	Collections, Incomplete int64 // all, and those in which something could not be looked at
	Seconds                 float64
	Ended                   time.Time // the last; zero: there was none
	Freed                   map[string]Freed
	WaitingBytes, HeldBytes int64 // as the last one found it: not old enough to go, and still in use
}

// Freed is what went of one kind.
type Freed struct{ Things, Bytes int64 }
