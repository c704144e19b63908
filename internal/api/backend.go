package api

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"time"

	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/export"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/peer"
)

// Functions runs functions and containers. *scheduler.Scheduler is one.
type Functions interface {
	Register(ctx context.Context, f function.Function) (store.Digest, error)
	// Call runs until the call has ended; cancelling ctx cancels the call.
	Call(ctx context.Context, r scheduler.CallRequest, sink scheduler.Sink) scheduler.Outcome
	// RunContainer runs until the container has ended and never closes stdin, which may be nil.
	RunContainer(ctx context.Context, r scheduler.ContainerRequest, stdin *os.File, sink scheduler.Sink) (scheduler.ContainerExit, error)
}

// History says what runs and what ran. *scheduler.Scheduler is one.
type History interface {
	Calls(ctx context.Context, workspace string, limit int) ([]scheduler.CallRecord, error)
	CallByID(ctx context.Context, workspace, id string) (scheduler.CallRecord, error)
	Instances(ctx context.Context, workspace string) ([]scheduler.InstanceRecord, error)
	Logs(ctx context.Context, workspace string, f scheduler.LogFilter) ([]scheduler.LogLine, error)
}

// Images lists and removes images.
type Images interface {
	List(ctx context.Context, workspace string) ([]ImageInfo, error)
	Inspect(ctx context.Context, ref image.Ref) (ImageDetail, error)
	Remove(ctx context.Context, ref image.Ref) error
}

// Builder makes an image out of a definition.
type Builder interface {
	Build(ctx context.Context, workspace string, definition json.RawMessage, p BuildSink) (store.Digest, error)
}

// Importer makes an image out of an archive or a directory on the server's
// machine. progress may be called from any one goroutine at a time, often.
type Importer interface {
	Import(ctx context.Context, workspace string, q ImportRequest, progress func(done, total int64)) (ImportResult, error)
}

// Exchange moves images between the store and the rest of the world. progress may
// be called from any one goroutine at a time, often.
type Exchange interface {
	Pull(ctx context.Context, workspace string, q PullRequest, progress func(done, total int64)) (ImportResult, error)
	Push(ctx context.Context, workspace string, q PushRequest, progress func(done, total int64)) (ExportResult, error)
	// Export writes an archive to w.
	Export(ctx context.Context, workspace string, q ExportRequest, w io.Writer, progress func(done, total int64)) (ExportResult, error)
	Diff(ctx context.Context, workspace string, q DiffRequest) (*image.Difference, error)
	// Share copies an image into the shared workspace.
	Share(ctx context.Context, workspace string, q ShareRequest, progress func(done, total int64)) (ImportResult, error)
}

// Blobs keeps uploaded content. *blobs.Store is one.
type Blobs interface {
	Has(workspace, ref string) (bool, error)
	Put(ctx context.Context, workspace, ref string, r io.Reader) error
}

// Stats measures the store.
type Stats interface {
	StoreStats(ctx context.Context) (StoreStats, error)
}

// BuildSink takes what a build says while it runs. Its methods are called from
// one goroutine at a time; an error means that the caller has gone.
type BuildSink interface {
	Step(index, total int, text string, cached bool) error // index from 1
	Log(p []byte) error                                    // output of the current step
	Progress(text string) error
}

// Info describes a server.
type Info struct {
	Version    string    `json:"version"`
	PID        int       `json:"pid"`
	Data       string    `json:"data"`
	Workspaces []string  `json:"workspaces"`
	Node       string    `json:"node"`
	Started    time.Time `json:"started"`
}

// ImageInfo is one line of the list of images.
type ImageInfo struct {
	Name    string       `json:"name,omitempty"` // empty for one that no name leads to
	Digest  store.Digest `json:"digest"`
	Files   int64        `json:"files"`
	Bytes   int64        `json:"bytes"` // of all files' content
	Created time.Time    `json:"created"`

	// Of distinct content, as the images of the list share it: what no other of them has, and the
	// rest; absent if that is not known, because a table is at an origin that does not answer.
	OwnBytes    *int64 `json:"own_bytes,omitempty"`
	SharedBytes *int64 `json:"shared_bytes,omitempty"`
}

// ImageDetail is all there is to say about an image.
type ImageDetail struct {
	ImageInfo
	Config    image.Config `json:"config"`
	Chunks    int64        `json:"chunks"`
	Packs     int64        `json:"packs"`
	PackBytes int64        `json:"pack_bytes,omitempty"` // compressed, with what other images keep in the same packs
	Metadata  int64        `json:"metadata_bytes"`       // of the EROFS image
	Mounted   bool         `json:"mounted"`              // now, on this node
	Mounts    []string     `json:"mounts,omitempty"`     // how: "lazy", "native" or both
	Local     *ImageLocal  `json:"local,omitempty"`      // what the node's cache has of it
	Read      *ImageReads  `json:"read,omitempty"`       // since the server started; native mounts read unseen

	Profiles []ImageProfile `json:"profiles,omitempty"`
}

// ImageProfile is what starts of one entry point on an image read, as it was learnt.
type ImageProfile struct {
	Entry   string    `json:"entry"`
	Runs    int64     `json:"runs"` // that it was learnt from
	Chunks  int64     `json:"chunks"`
	Bytes   int64     `json:"bytes"`
	Hot     int64     `json:"hot_packs"` // that hold these chunks in the order of use
	Updated time.Time `json:"updated"`
}

// ImageLocal counts what the node's cache has of an image.
type ImageLocal struct {
	Bytes      int64 `json:"bytes"`
	Chunks     int64 `json:"chunks"`
	TotalBytes int64 `json:"total_bytes"` // of distinct content
}

// ImageReads counts what has been read of an image, by where it came from.
type ImageReads struct {
	OriginBytes  int64 `json:"origin_bytes"`
	OriginChunks int64 `json:"origin_chunks"`
	CacheBytes   int64 `json:"cache_bytes"`
	CacheChunks  int64 `json:"cache_chunks"`
}

// ImportResult is what an import did.
type ImportResult struct {
	Digest    store.Digest `json:"digest"`
	Name      string       `json:"name"`
	Files     int64        `json:"files"`
	Bytes     int64        `json:"bytes"`
	Chunks    int64        `json:"chunks"`
	NewChunks int64        `json:"new_chunks"`
	NewBytes  int64        `json:"new_bytes"`
	MS        float64      `json:"ms"`
	Kind      string       `json:"kind"`              // what the path turned out to be
	Skipped   []string     `json:"skipped,omitempty"` // mount points in a directory, which were not entered

	Layers      int    `json:"layers,omitempty"`       // of a container image, each counted once
	KnownLayers int    `json:"known_layers,omitempty"` // of them, those that were not read because an earlier import had read them
	ReadBytes   int64  `json:"read_bytes,omitempty"`   // of the others, as they are stored or travel
	Source      string `json:"source,omitempty"`       // of a pull: the reference with the digest that it led to
}

// StoreStats is what the store holds. Sizes are in bytes.
type StoreStats struct {
	Images      int64    `json:"images"`
	ImageBytes  int64    `json:"image_bytes"`  // of all images' files, counted as often as images have them
	Packs       int64    `json:"packs"`        // at the origin
	OriginBytes int64    `json:"origin_bytes"` // of everything at the origin; like Packs, 0 if it does not answer
	Origin      Origin   `json:"origin"`
	Cache       CacheUse `json:"cache"`
	DiskFree    int64    `json:"disk_free"` // where DATA lies

	Peers *peer.Stats `json:"peers,omitempty"` // of a machine in a cluster
}

// Origin is where the store is, and how it does. The counts, since the server
// started, are of origins that are reached over a network.
type Origin struct {
	URL   string `json:"url"` // or a directory; no secrets
	Up    bool   `json:"up"`
	Error string `json:"error,omitempty"` // why it does not answer, or did not the last time
	Hint  string `json:"hint,omitempty"`

	Requests  int64 `json:"requests,omitempty"`
	ReadBytes int64 `json:"read_bytes,omitempty"`
	Failures  int64 `json:"failures,omitempty"`   // requests without an answer
	Denied    int64 `json:"denied,omitempty"`     // requests that were refused for want of good credentials
	Retries   int64 `json:"retries,omitempty"`    // requests again after a failure
	Hedges    int64 `json:"hedges,omitempty"`     // second requests because the first was slow
	HedgesWon int64 `json:"hedges_won,omitempty"` // that answered first
	Merged    int64 `json:"merged,omitempty"`     // reads that a neighbour's request served
}

// CacheUse is what the machine's cache holds, and counts since the server started.
type CacheUse struct {
	Chunks int64 `json:"chunks"`
	Bytes  int64 `json:"bytes"`
	Limit  int64 `json:"limit"`
	Pinned int64 `json:"pinned"` // bytes that mounted images keep there
	Disk   int64 `json:"disk"`   // bytes of the disk that it takes

	Hits         int64 `json:"hits"`
	Misses       int64 `json:"misses"`
	Drops        int64 `json:"drops"` // found damaged
	Writes       int64 `json:"writes"`
	Evicted      int64 `json:"evicted"`
	EvictedBytes int64 `json:"evicted_bytes"`
	Refused      int64 `json:"refused"` // not kept: no room, and nothing that may go

	Scrub Scrubbed `json:"scrub"`
}

// Scrubbed says how much of the cache has been read from the disk and verified lately.
type Scrubbed struct {
	Began *time.Time `json:"began,omitempty"` // the round that is under way
	Done  int64      `json:"done"`            // bytes of it
	Total int64      `json:"total"`           // of so many
	Ended *time.Time `json:"ended,omitempty"` // the last whole round
}

// ExportResult says what an export or a push made.
type ExportResult = export.Report
