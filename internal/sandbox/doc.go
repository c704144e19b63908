// Package sandbox says what a sandbox is: one process tree in isolation, on a
// root filesystem that somebody else mounted, with limits, a network namespace
// and pipes that somebody else made.
//
// The package holds the contract only. Each kind of sandbox has a package of its
// own (gvisor), the network namespaces come from package network, and the files of
// control groups are read and removed by package cgroup. Package sandboxtest is the
// contract as a test suite.
//
// A sandbox's life: Create (prepared, nothing runs) -> Start or Restore -> Wait,
// Signal, Checkpoint, Upper -> Destroy. Destroy is legal at any time and is always
// the last step; whoever called Create owes it.
package sandbox
