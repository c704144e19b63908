package server

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/cluster"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/peer"
	"brisk.dev/brisk/internal/store/seal"
)

// company is this machine's part in a cluster: membership, and the exchange of
// chunks. A nil company is a machine by itself.
type company struct {
	cluster *cluster.Cluster
	peers   *peer.Peers
	ring    *seal.Keyring
	bucket  bool // the store is one that other machines can use

	mu     sync.Mutex
	stores *store.Workspaces // nil before begin
	lines  map[string]string // of keys, by workspace: they do not change
}

func clusterDir(p Paths) string { return filepath.Join(p.Data, "cluster") }

// openKeyring opens the machine's own keys, or, on a node, the cluster's, which
// lie apart: a machine that leaves has its own again.
func openKeyring(p Paths) (*seal.Keyring, error) {
	place, err := cluster.Look(clusterDir(p))
	if err != nil {
		return nil, err
	}
	if place.Kind == cluster.Node {
		return seal.OpenKeyring(clusterKeys(p))
	}
	return seal.OpenKeyring(filepath.Join(p.Data, "keys"))
}

func clusterKeys(p Paths) string { return filepath.Join(clusterDir(p), "keys") }

// openCompany takes part in the cluster that the machine has joined, or makes one
// if it is to listen; otherwise there is no company. Nobody is answered before begin.
func openCompany(ctx context.Context, o Options, p Paths, ring *seal.Keyring, origin Place, log func(part string) *slog.Logger) (*company, error) {
	place, err := cluster.Look(clusterDir(p))
	if err != nil {
		return nil, err
	}
	if o.Listen == "" && place.Kind != cluster.Node {
		if place.Kind == cluster.Control {
			log("cluster").Warn("this machine is the control node of a cluster, and its nodes cannot reach it", "hint", "Start it with --listen.")
		}
		return nil, nil
	}
	c := &company{ring: ring, bucket: origin.Bucket != nil, lines: map[string]string{}}
	c.cluster, err = cluster.Open(ctx, cluster.Options{
		Dir: clusterDir(p), Name: o.Node, Listen: o.Listen, Advertise: o.Advertise, Origin: origin.URL,
		Version: o.Version, Keys: c, Traffic: c.traffic, Changed: c.changed, Log: log("cluster"),
	})
	if err != nil {
		return nil, err
	}
	c.peers = peer.New(peer.Options{
		Self: c.cluster.Self(), Listens: o.Listen != "", Serve: c.serve, Log: log("peers"),
		Dial: func(ctx context.Context, m peer.Member) (net.Conn, error) { return c.cluster.Dial(ctx, m.Name) },
	})
	return c, nil
}

// storePeers are the peers for the stores; nil if there is no company.
func (c *company) storePeers() store.Peers {
	if c == nil {
		return nil // and not a *peer.Peers that is nil
	}
	return c.peers
}

// makeKeys has the cluster's control node make a workspace's keys; nil if this
// machine makes its own.
func (c *company) makeKeys() func(ctx context.Context, workspace string) error {
	if c == nil || c.cluster.Status().Control {
		return nil
	}
	return c.cluster.EnsureKeys
}

// begin answers others from now on.
func (c *company) begin(stores *store.Workspaces) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.stores = stores
	c.mu.Unlock()
	c.cluster.Handle(peer.PatternChunk, c.peers.ServeChunk)
	c.cluster.Handle(peer.PatternAnnounce, c.peers.ServeAnnounce)
	c.cluster.Handle(peer.PatternPing, c.peers.ServePing)
	c.cluster.Start()
}

func (c *company) close() {
	_ = c.cluster.Close() // neither fails
	_ = c.peers.Close()
}

// changed passes the members on.
func (c *company) changed(live []cluster.Member) {
	l := make([]peer.Member, len(live))
	for i, m := range live {
		l[i] = peer.Member{Name: m.Name, Address: m.Address, Epoch: m.Epoch}
	}
	c.peers.SetMembers(l)
}

func (c *company) traffic() (t cluster.Traffic) {
	if c.peers == nil { // while the cluster is opened
		return t
	}
	s := c.peers.Stats()
	t.ServedChunks, t.ServedBytes = s.Served, s.Bytes
	for _, p := range s.Peers {
		t.FetchedChunks += p.Reads
		t.FetchedBytes += p.Bytes
		t.Failures += p.Failures
		t.Lies += p.Lies
	}
	return t
}

// serve answers for the stores of workspaces whose keys are here.
func (c *company) serve(ctx context.Context, workspace string, name store.Digest) ([]byte, error) {
	if _, err := c.ring.Find(workspace); err != nil {
		return nil, fault.New(fault.NotFound, "no workspace %.80q here", workspace)
	}
	c.mu.Lock()
	stores := c.stores
	c.mu.Unlock()
	s, err := stores.Store(workspace)
	if err != nil {
		return nil, err
	}
	return s.Serve(ctx, name)
}

// Export gives the lines of all keys.
func (c *company) Export() (map[string]string, error) {
	all, err := c.ring.Workspaces()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range all {
		if _, known := c.lines[w]; known {
			continue
		}
		line, err := c.ring.Export(w)
		if err != nil {
			return nil, err
		}
		c.lines[w] = line
	}
	return maps.Clone(c.lines), nil
}

// Import keeps the lines of keys.
func (c *company) Import(lines map[string]string) error { return importKeys(c.ring, lines) }

func importKeys(ring *seal.Keyring, lines map[string]string) error {
	for workspace, line := range lines {
		of, err := ring.Import(line)
		if err == nil && of != workspace {
			err = fault.New(fault.Corrupt, "the key for workspace %.80q is that of %q", workspace, of)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Make opens the workspace, which makes its keys unless others have sealed
// something with keys that are not here.
func (c *company) Make(workspace string) error {
	c.mu.Lock()
	stores := c.stores
	c.mu.Unlock()
	_, err := stores.Store(workspace)
	return err
}

// nodeAPI is the cluster for the API.
type nodeAPI struct{ *company }

func (a nodeAPI) part() (*company, error) {
	if a.company == nil {
		return nil, fault.New(fault.NotFound, "this machine is in no cluster").
			WithHint("`brisk up --listen ADDRESS` makes it the control node of one; `brisk node join TOKEN` has it join another's.")
	}
	return a.company, nil
}

func (a nodeAPI) Nodes(context.Context) (api.NodeList, error) {
	c, err := a.part()
	if err != nil {
		return api.NodeList{}, err
	}
	return api.NodeList{Status: c.cluster.Status(), Peers: c.peers.Stats()}, nil
}

func (a nodeAPI) NodeToken(_ context.Context, q api.NodeTokenRequest) (api.NodeToken, error) {
	c, err := a.part()
	if err != nil {
		return api.NodeToken{}, err
	}
	if !c.bucket {
		return api.NodeToken{}, fault.New(fault.Invalid, "the store of this machine is a directory, which other machines cannot use").
			WithHint("Machines of a cluster share a bucket: start this one with --store s3://BUCKET (and another --data, if this one has images).")
	}
	if q.Expires == 0 {
		q.Expires = time.Hour
	}
	t, err := c.cluster.NewToken(cluster.TokenOptions{Expires: q.Expires, Reusable: q.Reusable})
	if err != nil {
		return api.NodeToken{}, err
	}
	return api.NodeToken{Token: t.String(), Expires: time.Now().Add(q.Expires).UTC().Truncate(time.Second)}, nil
}

func (a nodeAPI) RemoveNode(_ context.Context, name string) (api.NodeRemoval, error) {
	c, err := a.part()
	if err != nil {
		return api.NodeRemoval{}, err
	}
	n, err := c.cluster.Remove(name)
	return api.NodeRemoval{WithdrawnTokens: n}, err
}
