// Package remote makes an origin that is reached over a network as good as it can
// be: Origin does what another store.Origin does, and bears with its failures.
//
//   - Deadlines. An attempt at something small has Options.Attempt; at something
//     large (Put, Open, List) it has as much without any progress. All attempts at something small
//     together have Options.Overall, so nobody waits longer for an origin that is gone.
//   - Retries. What failed with fault.Unavailable, or took too long, is tried again
//     after a random part of a doubling delay. Other classes are answers, and are
//     given on. Swap is repeated only if the origin has certainly done nothing
//     (store.ErrRefused). A stream goes on where it broke off.
//   - Hedging. A read that takes longer than 19 of 20 do gets a second request, and
//     the first answer counts; that is at most one request in twenty, and never a write.
//   - Merging. While one read of an object is in progress, further ones are
//     gathered for an eighth of the usual latency, 2 ms at most, and neighbours
//     become one request. A read that is alone is never kept waiting.
//   - A bound on the requests in progress (Options.Parallel).
//   - A breaker. When nothing has been answered for two seconds and five attempts
//     (300 ms and three, if there never was an answer), everything fails at once with
//     what was wrong, but for one request now and then that finds out whether the
//     origin is back. So an origin that is down costs time once, not at each read.
//
// Reading may go on for a moment after the last reader has left; Close ends and
// awaits everything. Safe for concurrent use; no lock is held while the origin is asked.
package remote
