package cluster

import (
	"crypto/subtle"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// registry is the control node's list of nodes and tokens. Changes are durable
// when their methods return.
type registry struct {
	path  string
	clock *clock

	mu  sync.Mutex                   // orders changes; held while one is written
	now atomic.Pointer[registryFile] // as on disk; what it points to does not change

	presence struct {
		sync.Mutex
		of map[string]presence // nodes' names to what their beats said
	}
}

// registryFile is DATA/cluster/registry.json: docs/format/cluster.md.
type registryFile struct {
	Version int                    `json:"version"`
	Epoch   uint64                 `json:"epoch"` // the last one given
	Nodes   map[string]nodeRecord  `json:"nodes"`
	Tokens  map[string]tokenRecord `json:"tokens"` // by ID
}

type nodeRecord struct {
	Key         Fingerprint `json:"key"`
	Joined      time.Time   `json:"joined"`
	Address     string      `json:"address"`
	Epoch       uint64      `json:"epoch"`
	Incarnation string      `json:"incarnation"` // of its server process that had the epoch
}

type tokenRecord struct {
	Hash     Fingerprint  `json:"hash"` // of the secret
	Expires  time.Time    `json:"expires"`
	Reusable bool         `json:"reusable,omitempty"`
	UsedBy   *Fingerprint `json:"used_by,omitempty"` // of a token for one machine: its key
}

// presence is what a node's last beat said.
type presence struct {
	at      time.Time // monotonic
	version string
	traffic Traffic
}

// tokenMemory is how long an expired token is told from an unknown one.
const tokenMemory = 7 * 24 * time.Hour

func openRegistry(dir string, clock *clock) (*registry, error) {
	r := &registry{path: filepath.Join(dir, "registry.json"), clock: clock}
	r.presence.of = map[string]presence{}
	f := &registryFile{Version: stateVersion}
	if _, err := readJSON(r.path, f); err != nil {
		return nil, err
	}
	r.now.Store(f)
	return r, nil
}

// change applies fn to a copy of the state and makes that the state. An error of
// fn changes nothing.
func (r *registry) change(fn func(f *registryFile) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.now.Load()
	f := &registryFile{Version: stateVersion, Epoch: old.Epoch, Nodes: maps.Clone(old.Nodes), Tokens: maps.Clone(old.Tokens)}
	if f.Nodes == nil {
		f.Nodes = map[string]nodeRecord{}
	}
	if f.Tokens == nil {
		f.Tokens = map[string]tokenRecord{}
	}
	if err := fn(f); err != nil {
		return err
	}
	horizon := r.clock.now().Add(-tokenMemory)
	maps.DeleteFunc(f.Tokens, func(_ string, t tokenRecord) bool { return t.Expires.Before(horizon) })
	if err := publishJSON(r.path, f); err != nil {
		return err
	}
	r.now.Store(f)
	return nil
}

// begin gives the control node's server process its epoch.
func (r *registry) begin() (epoch uint64, err error) {
	err = r.change(func(f *registryFile) error {
		f.Epoch++
		epoch = f.Epoch
		return nil
	})
	return epoch, err
}

// addToken keeps a token.
func (r *registry) addToken(t Token, expires time.Time, reusable bool) error {
	return r.change(func(f *registryFile) error {
		f.Tokens[t.id()] = tokenRecord{Hash: t.hash(), Expires: expires, Reusable: reusable}
		return nil
	})
}

// admit makes a machine that shows a token a member. The same machine may do so
// again, in case it has not seen the answer.
func (r *registry) admit(t Token, name string, key Fingerprint) error {
	return r.change(func(f *registryFile) error {
		record, known := f.Tokens[t.id()]
		hash := t.hash()
		right := subtle.ConstantTimeCompare(record.Hash[:], hash[:]) == 1
		switch {
		case !known || !right:
			return refuseToken("the control node does not know this token")
		case r.clock.now().After(record.Expires):
			return refuseToken("this token has expired")
		case record.UsedBy != nil && *record.UsedBy != key:
			return refuseToken("this token has been used by another machine")
		}
		for other, n := range f.Nodes {
			switch {
			case n.Key == key && other != name:
				return fault.New(fault.Exists, "this machine is a member already, by the name %s", other).
					WithHint("Join with --node %s, or remove that one with `brisk node rm %s` on the control node.", other, other)
			case n.Key != key && strings.EqualFold(other, name):
				return fault.New(fault.Exists, "the cluster has another machine by the name %s", other).
					WithHint("Give this one another name with --node, or remove the other with `brisk node rm %s` on the control node.", other)
			}
		}
		if !record.Reusable {
			record.UsedBy = &key
			f.Tokens[t.id()] = record
		}
		if _, again := f.Nodes[name]; !again {
			f.Nodes[name] = nodeRecord{Key: key, Joined: r.clock.now().UTC()}
		}
		return nil
	})
}

func refuseToken(why string) error {
	return refusal{fault.New(fault.Invalid, "%s", why).WithHint("`brisk node token` on the control node makes a new one.")}
}

// remove ends a membership. Tokens that would let the machine in again go too;
// reusable says how many of those others might have used.
func (r *registry) remove(name string) (reusable int, err error) {
	err = r.change(func(f *registryFile) error {
		n, is := f.Nodes[name]
		if !is {
			return noNode(name)
		}
		delete(f.Nodes, name)
		maps.DeleteFunc(f.Tokens, func(_ string, t tokenRecord) bool {
			if t.Reusable {
				reusable++
			}
			return t.Reusable || t.UsedBy != nil && *t.UsedBy == n.Key
		})
		return nil
	})
	if err == nil {
		r.presence.Lock()
		delete(r.presence.of, name)
		r.presence.Unlock()
	}
	return reusable, err
}

func noNode(name string) error {
	return fault.New(fault.NotFound, "the cluster has no node %.80q", name).WithHint("`brisk node ls` lists them.")
}

// beat notes what a node says. A new incarnation gets a new epoch.
func (r *registry) beat(name string, q *beatRequest) error {
	n, is := r.now.Load().Nodes[name]
	if !is {
		return noNode(name)
	}
	if n.Incarnation != q.Incarnation || n.Address != q.Address {
		err := r.change(func(f *registryFile) error {
			n, is := f.Nodes[name]
			if !is { // removed just now
				return noNode(name)
			}
			if n.Incarnation != q.Incarnation {
				f.Epoch++
				n.Epoch, n.Incarnation = f.Epoch, q.Incarnation
			}
			n.Address = q.Address
			f.Nodes[name] = n
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.presence.Lock()
	defer r.presence.Unlock()
	r.presence.of[name] = presence{at: time.Now(), version: q.Brisk, traffic: q.Traffic}
	return nil
}

// members lists the nodes by name. Those that have not beaten for longer than
// patience are dead, but nobody is before the control node has been there so long.
func (r *registry) members(patience time.Duration, began time.Time) []Member {
	f := r.now.Load()
	r.presence.Lock()
	defer r.presence.Unlock()
	var l []Member
	for _, name := range slices.Sorted(maps.Keys(f.Nodes)) {
		n, p := f.Nodes[name], r.presence.of[name]
		m := Member{Name: name, Address: n.Address, Epoch: n.Epoch, Key: n.Key, Joined: n.Joined, Seen: -1, Version: p.version, Traffic: p.traffic}
		last := began
		if !p.at.IsZero() {
			last = p.at
			m.Seen = time.Since(p.at).Milliseconds()
		}
		m.Alive = n.Incarnation != "" && time.Since(last) <= patience
		l = append(l, m)
	}
	return l
}
