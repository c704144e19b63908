// Package cgroup reads, empties and removes control groups that somebody else
// made: the sandbox runtimes create a group for each sandbox and set its limits,
// and Brisk has to know what the group used, why its processes died, and how to
// leave nothing behind.
//
// Both versions are handled. In version 2 a group is one directory. In version 1,
// and on hybrid machines, it is a directory of the same name in each of a dozen
// hierarchies, which need not all have it.
//
// Nothing here blocks for longer than its context, and nothing is cached: a Group
// is a name, and the group behind it may vanish at any time.
package cgroup
