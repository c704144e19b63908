// Package metrics says what a server does in numbers, in the form that Prometheus
// reads: GET /v1/metrics. docs/metrics.md, which is made from the tables here, lists
// every one.
//
// # What it promises
//
// The numbers are of the whole machine. No label has a word in it that a user has
// chosen, such as the name of a workspace, an image or a function: whoever reads them
// learns nothing of any one tenant. Each label has one of the values that its table lists,
// or "other"; so there are never more series than the page says.
//
// A name begins with brisk_, and ends with its unit (bytes, seconds), and _total if it is
// a count since the server's start.
//
// # Who may block whom
//
// A reading asks nothing of an origin or of another machine, and costs some milliseconds, most
// of them for looking through the cache's table. Readings that come at once are one after the other.
package metrics
