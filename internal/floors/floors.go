// Package floors holds no code, only the test that keeps the house in order:
// each package imports from floors below its own, is documented once, and is
// named for what it is.
//
// The order itself is the table in floors_test.go, which is docs/design's order
// of packages in executable form. A new package gets a line there, or lives below
// one that has; changing the order is a decision about the design.
package floors
