package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/cluster"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/s3/s3test"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// member is a machine of a cluster as far as its store goes.
type member struct {
	*company
	stores *store.Workspaces
	cache  store.Cache
}

const testOrigin = "s3://bucket/x?endpoint=http://127.0.0.1:1&region=us-east-1"

// openMember opens what wire does, over an origin in memory.
func openMember(t *testing.T, p Paths, name string, origin store.Origin) *member {
	t.Helper()
	log := func(string) *slog.Logger { return slog.New(slog.DiscardHandler) }
	ring, err := openKeyring(p)
	require.NoError(t, err)
	place, err := parsePlace(testOrigin, func(string) string { return "" })
	require.NoError(t, err)
	c, err := openCompany(t.Context(), Options{Node: name, Listen: "127.0.0.1:0", Version: "test"}, p, ring, place, log)
	require.NoError(t, err)
	t.Cleanup(c.close)
	cache, err := slab.Open(slab.Options{Dir: t.TempDir(), Log: log("")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cache.Close()) })
	stores, err := store.OpenWorkspaces(t.Context(), store.WorkspacesOptions{
		Dir: t.TempDir(), Origin: origin, Cache: cache, Keyring: ring, Sealed: true, Shared: true,
		Peers: c.storePeers(), MakeKeys: c.makeKeys(), Log: log(""),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stores.Close()) })
	_, err = stores.Store("default")
	require.NoError(t, err)
	c.begin(stores)
	return &member{c, stores, cache}
}

func TestCompany(t *testing.T) {
	needRoot(t)
	s3test.Setenv(t)
	origin := storetest.NewMemOrigin()
	control := openMember(t, Paths{Data: t.TempDir()}, "c", origin)
	token, err := nodeAPI{control.company}.NodeToken(t.Context(), api.NodeTokenRequest{})
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), token.Expires, time.Minute)

	data := filepath.Join(t.TempDir(), "data")
	place, err := Join(t.Context(), JoinOptions{Data: data, Node: "a", Token: token.Token})
	require.NoError(t, err)
	require.Equal(t, cluster.Place{Kind: cluster.Node, Name: "a", Origin: testOrigin}, place)
	p, err := PathsOf(data)
	require.NoError(t, err)
	remembered, err := FindPlace(p, "")
	require.NoError(t, err)
	require.Equal(t, testOrigin, remembered.URL, "the cluster's store is the machine's")
	require.NoDirExists(t, filepath.Join(data, "keys"))
	a := openMember(t, p, "ignored", origin)
	require.Equal(t, "a", a.cluster.Self())

	// The node's keys are the control node's, for a new workspace too.
	for _, w := range []string{"default", "team"} {
		_, err = a.stores.Store(w)
		require.NoError(t, err)
		ours, err := a.ring.Find(w)
		require.NoError(t, err)
		theirs, err := control.ring.Find(w)
		require.NoError(t, err)
		require.Equal(t, theirs.ID(), ours.ID())
	}

	// Nothing is made or opened for those who ask for it.
	_, err = control.serve(t.Context(), "nobodys", store.Digest{})
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
	_, err = control.ring.Find("nobodys")
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
	_, err = control.serve(t.Context(), "../default", store.Digest{})
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
	_, err = control.serve(t.Context(), "team", store.Digest{1})
	require.Equal(t, fault.NotFound, fault.ClassOf(err))

	require.Eventually(t, func() bool {
		l, err := nodeAPI{control.company}.Nodes(t.Context())
		return err == nil && len(l.Members) == 2 && l.Members[1].Alive
	}, 20*time.Second, 10*time.Millisecond)
	_, err = nodeAPI{a.company}.NodeToken(t.Context(), api.NodeTokenRequest{})
	require.Contains(t, fault.HintOf(err), "Run the command on the control node")
	_, err = nodeAPI{control.company}.RemoveNode(t.Context(), "a")
	require.NoError(t, err)
}

func TestJoinRefuses(t *testing.T) {
	p := place(t)
	_, err := Join(t.Context(), JoinOptions{Data: p.Data, Token: "brisk1_x"})
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
	require.NoDirExists(t, p.Data, "nothing is begun")
	_, err = Leave(t.Context(), p.Data, false)
	require.Equal(t, fault.NotFound, fault.ClassOf(err))

	// A machine with a server.
	h, err := occupy(Options{Data: p.Data})
	require.NoError(t, err)
	token := cluster.Token{Addresses: []string{"127.0.0.1:1"}}
	_, err = Join(t.Context(), JoinOptions{Data: p.Data, Node: "a", Token: token.String()})
	require.Equal(t, fault.Exists, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "brisk down")
	h.leave()
	_, err = Join(t.Context(), JoinOptions{Data: p.Data, Node: "a", Token: token.String()})
	require.Equal(t, fault.Unavailable, fault.ClassOf(err))

	// A control node ends its cluster only if that is meant.
	c, err := cluster.Open(t.Context(), cluster.Options{Dir: clusterDir(p), Name: "c", Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	_, err = Leave(t.Context(), p.Data, false)
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "--end-cluster")
	_, err = Leave(t.Context(), p.Data, true)
	require.NoError(t, err)
	require.NoDirExists(t, clusterDir(p))
}

func TestADirectoryIsNoStoreForACluster(t *testing.T) {
	_, err := nodeAPI{&company{}}.NodeToken(t.Context(), api.NodeTokenRequest{})
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "--store s3://")
}

func TestAMachineByItself(t *testing.T) {
	p := Paths{Data: t.TempDir()}
	c, err := openCompany(context.Background(), Options{}, p, nil, Place{}, func(string) *slog.Logger { return slog.New(slog.DiscardHandler) })
	require.NoError(t, err)
	require.Nil(t, c)
	require.Nil(t, c.storePeers())
	require.Nil(t, c.makeKeys())
	c.begin(nil)
	_, err = nodeAPI{c}.Nodes(t.Context())
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "brisk up --listen")
}
