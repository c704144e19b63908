package server

import (
	"context"
	"os"
	"time"

	"brisk.dev/brisk/internal/cluster"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// How long another machine may take.
const (
	joinTime  = 30 * time.Second
	leaveTime = 5 * time.Second
)

// JoinOptions say which machine joins a cluster, and with what.
type JoinOptions struct {
	Data  string // as in Options
	Node  string // as in Options
	Token string // as `brisk node token` prints it
}

// Join makes a machine, whose server must not run, a node of a cluster, and the
// cluster's store its own.
func Join(ctx context.Context, o JoinOptions) (cluster.Place, error) {
	token, err := cluster.ParseToken(o.Token)
	if err != nil {
		return cluster.Place{}, err
	}
	if o.Node == "" {
		o.Node, _ = os.Hostname()
	}
	p, release, err := visit(o.Data)
	if err != nil {
		return cluster.Place{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	return cluster.Join(ctx, cluster.JoinOptions{
		Dir: clusterDir(p), Name: o.Node, Token: token,
		Keep: func(origin string, keys map[string]string) error {
			place, err := FindPlace(p, origin)
			if err != nil {
				return err
			}
			ring, err := seal.OpenKeyring(clusterKeys(p))
			if err != nil {
				return err
			}
			if err := importKeys(ring, keys); err != nil {
				return err
			}
			return place.remember(p)
		},
	})
}

// Leave ends a machine's part in its cluster; its server must not run. told says
// whether the control node knows. On a control node it ends the cluster, which has
// to be meant.
func Leave(ctx context.Context, data string, endCluster bool) (told bool, err error) {
	p, release, err := visit(data)
	if err != nil {
		return false, err
	}
	defer release()
	switch place, err := cluster.Look(clusterDir(p)); {
	case err != nil:
		return false, err
	case place.Kind == cluster.Alone:
		return false, fault.New(fault.NotFound, "this machine is in no cluster")
	case place.Kind == cluster.Control && !endCluster:
		return false, fault.New(fault.Invalid, "this machine is the control node: without it the cluster ends, and its nodes have to join another").
			WithHint("If that is meant: --end-cluster.")
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	return cluster.Leave(ctx, clusterDir(p))
}

// visit takes the place of a data directory's server for a moment.
func visit(data string) (Paths, func(), error) {
	if os.Geteuid() != 0 {
		return Paths{}, nil, NotRoot()
	}
	p, err := PathsOf(data)
	if err != nil {
		return Paths{}, nil, err
	}
	if err := prepareData(p); err != nil {
		return Paths{}, nil, err
	}
	l, err := takeLock(p)
	if err != nil {
		return Paths{}, nil, err
	}
	return p, l.release, nil
}
