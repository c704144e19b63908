// Package sandboxtest is the contract of package sandbox as a test suite. A kind of
// sandbox calls Run from a test of its own; it is done when all of it passes.
//
// The suite needs root, because sandboxes do. It builds a static program (probe)
// with the go command, and a root directory that holds nothing else. It counts what
// the machine has (processes in the sandboxes' control groups, mounts, files in the
// runtime's directories) before and after each test, so that a leak fails the test
// that made it.
package sandboxtest
