// Package peer has machines of a cluster serve each other chunks out of their
// caches, so that the origin is asked only for what nobody has. It implements
// store.Peers, and the answers to those who ask. The protocol is in
// docs/format/peer.md.
//
// # Who has what
//
// Names of chunks are keyed, so that all that this package knows of content is
// random numbers. Each name has two owners, found by rendezvous hashing over the
// members that are alive, the asking machine included. A machine announces the
// chunks that it has got to their owners, which keep a directory of who has
// announced what: bounded, in memory, and a hint only. Who wants a chunk asks its
// first owner, which answers with the chunk, or with the names of those who
// announced it; then those; then the second owner. When the members change, each
// machine tells new owners what it has announced lately.
//
// An owner never reads the origin for others. It would be the place where the
// origin's slowness, its bill and the memory for all gather; a machine that asked it
// would wait for a read that it can do itself at the same price; and one credential
// more would do the bidding of everybody. So of several machines that miss the
// same chunk at the same moment each reads the origin once.
//
// # What it may cost
//
// A reader waits for peers at most for Options.Deadline twice, and mostly far less:
// each request has a deadline of twice what the slowest in a hundred of that peer's
// last answers with chunks took, once there have been enough of them. The second candidate is asked beside the first as soon as that
// is slower than its usual. There is no queue: a peer has a bounded number of requests
// in flight here, and answers a bounded number; beyond that the next is asked, or
// nobody. So the origin is what gets the rest of a stampede.
//
// A peer that fails or is too slow costs that deadline once: all requests that wait
// for it end with the first that fails, the connection is given up, and nobody asks it
// until a connection in the background has succeeded again and a ping over it was
// quick, which is tried after a pause that doubles up to half a minute. No
// reader ever waits for a connection.
//
// # Lies
//
// An answer is right if Fetch's accept takes it, which opens its seal and
// compares the digest. A peer whose answer was refused is convicted: it is not asked
// for ten minutes, and longer after each further lie; what it announces counts as
// before. It is logged, counted, and part of [Peers.Stats].
//
// # Who may block whom
//
// [Peers.Announce] and [Peers.SetMembers] never block; [Peers.Fetch] as above. accept
// is called in Fetch's goroutine; the answer is accept's to change, and not to keep.
// Close ends what is in flight and waits for it.
package peer
