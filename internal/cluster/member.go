package cluster

import (
	"slices"
	"time"
)

// Member is a machine of the cluster.
type Member struct {
	Name    string      `json:"name"`
	Address string      `json:"address"` // host:port where it listens; "" if it does not
	Epoch   uint64      `json:"epoch"`   // rises each time the machine's server starts
	Key     Fingerprint `json:"key"`     // of its certificates
	Control bool        `json:"control"`
	Alive   bool        `json:"alive"` // beats come
	Joined  time.Time   `json:"joined"`
	Seen    int64       `json:"seen_ms"` // since its last beat, when the list was made; -1 = not since the control node started
	Version string      `json:"version"` // of its Brisk
	Traffic Traffic     `json:"traffic"`
}

// Traffic is what a member says it has exchanged with others since its server started.
type Traffic struct {
	ServedChunks  int64 `json:"served_chunks"`
	ServedBytes   int64 `json:"served_bytes"`
	FetchedChunks int64 `json:"fetched_chunks"`
	FetchedBytes  int64 `json:"fetched_bytes"`
	Failures      int64 `json:"failures"`
	Lies          int64 `json:"lies"` // answers that were not what was asked for
}

// roster is the list of members as it is in force, the control node first, the
// others by name. It does not change.
type roster struct {
	made    time.Time // by the local monotonic clock
	members []Member
}

// find gives the member of a name; nil if there is none.
func (r *roster) find(name string) *Member {
	if r == nil {
		return nil
	}
	if i := slices.IndexFunc(r.members, func(m Member) bool { return m.Name == name }); i >= 0 {
		return &r.members[i]
	}
	return nil
}

// admits reports whether an identity is one of a member: by name, role and key.
func (r *roster) admits(id identity) bool {
	m := r.find(id.name)
	return m != nil && m.Key == id.key && m.Control == (id.role == control)
}

// live gives those that are alive and listen, but for one.
func (r *roster) live(self string) []Member {
	var l []Member
	if r != nil {
		for _, m := range r.members {
			if m.Alive && m.Address != "" && m.Name != self {
				l = append(l, m)
			}
		}
	}
	return l
}

// sameMembers reports whether two lists of live members lead to the same machines.
func sameMembers(a, b []Member) bool {
	return slices.EqualFunc(a, b, func(a, b Member) bool {
		return a.Name == b.Name && a.Address == b.Address && a.Epoch == b.Epoch && a.Key == b.Key
	})
}
