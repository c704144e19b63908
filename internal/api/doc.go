// Package api is the door of a Brisk server: HTTP and JSON over a unix socket,
// and the Go client of the same. docs/design/architecture.md lists the endpoints.
//
// # What it promises
//
// An error has a class of package fault, on the wire and after Client has read
// it, and the status code that belongs to the class. The workspace is part of
// every path; one that does not exist is not_found, whatever is asked of it.
//
// What takes long answers with a stream of frames (see Frame): a line of JSON
// each, which may announce raw bytes after it. A stream begins with its first
// frame; a failure before that is an ordinary error response, a failure after it
// is the stream's last frame.
//
// # Who may block whom
//
// A client that reads slowly slows down what it reads: frames are written
// straight to the connection, nothing is queued, and so a sandbox that prints
// 100 MB to a stopped terminal waits. A client that goes away cancels what it
// asked for. The server never opens a payload: inputs, results and exceptions
// are pickles, passed from one side to the other as they are.
//
// Memory: a call's input is held once, up to MaxInput; everything else streams.
//
// # What it needs
//
// Only the interfaces of backend.go, which the scheduler and the image packages
// satisfy (some through adapters in package server); apitest has fakes of them.
package api
