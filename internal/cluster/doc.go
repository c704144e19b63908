// Package cluster joins machines: it says who belongs to a cluster, which of
// those are alive, and lets them talk to each other over mutually authenticated
// connections. What they say to each other beyond that is other packages'
// business ([Cluster.Handle]).
//
// # What is what
//
// A cluster is made by its control node, which has the cluster's own certificate
// authority and the list of members. Other machines join with a [Token] and are
// nodes then. Every machine, control or not, is a [Member] with a name that is
// unique in the cluster. A cluster's name is that of its authority's key.
//
// A node sends the control node a beat every [Options.Beat], and gets the list
// of members with the answer: with it, a new certificate when the old one is half
// through its life, and the workspaces' keys that it lacks. A node that has missed
// [Options.Misses] beats is dead: it is still a member, and nobody asks it for
// anything. While the control node does not answer, the last list stays in force
// for [Options.ListFor]; after that the node knows nobody until it answers again.
//
// # Who may
//
// A certificate says who somebody is: cluster, role, name. Whether that somebody
// may is decided by the list of members, which holds each one's key, at every
// request: a member that was removed is refused by the control node at once, by
// others from their next beat on. Certificates are short-lived besides, for
// machines that have not heard a beat for long.
//
// A token holds the fingerprint of the authority, and a joining machine sends the
// token's secret only to a server that proves to belong to it. Of the secret the
// control node keeps a hash.
//
// # Time
//
// Time is counted by the monotonic clock from what the wall clock said when the
// process began; nodes take it over from the control node with each beat. A clock
// that is wrong or jumps, on a node or on all, ends no membership. The dates of
// certificates are checked between nodes only, with leeway: the control node knows
// its members by key, and nodes know it by its authority's signature. So a machine
// that was off for a month is a member again with its first beat.
//
// # Who may block whom
//
// [Cluster.Members], [Cluster.Self] and [Cluster.Status] never block. [Cluster.Dial]
// takes until its context ends at most. [Options.Changed] is called from one
// goroutine at a time and must not block. What the control node answers waits
// for its disk where something must be durable first: joining, removing, tokens.
// Close stops everything and waits for it, handlers included, whose requests it
// cancels.
//
// What lies in Options.Dir is described in docs/format/cluster.md, what goes over
// the wire in docs/format/peer.md.
package cluster
