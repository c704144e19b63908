// Package server puts Brisk's parts together and runs them as one process, from
// the first directory to the last. It is the only package that knows all parts;
// they know only what they need of each other.
//
// # A server's life
//
// Run takes the lock of the data directory, makes the run directory, builds the
// parts (wire), which sweep what a killed predecessor left, and only then opens
// the socket: whoever can connect finds everything ready. It ends on SIGINT or
// SIGTERM, when a client asks, or when nobody has needed it for Options.IdleExit.
// Then new requests are refused, calls end, instances are destroyed, mounts go,
// and the run directory is removed. All of that together has shutdownTime; a
// second signal cuts it short, and what is left then is swept by the next start,
// or by Sweep.
//
// # Who is whose
//
// One data directory has one server: it holds DATA/lock, whose text names it. The
// run directory belongs to the data directory (Paths), so that a client finds the
// socket knowing only --data. A server that a command starts in the background
// (EnsureRunning) tells that command how it went over a pipe, and is on its own then.
//
// The process must live in a mount namespace of its own before Run is called:
// EnterNamespace.
package server
