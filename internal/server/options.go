package server

import (
	"io"
	"os"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Options say which server to run and how. Only Data is needed, and even that
// has a default; zero values of the others are sensible.
type Options struct {
	Data      string // directory of the state; "" = DefaultData
	Version   string // of the program, for GET /v1/info
	Runsc     string // path of runsc; "" = look for it (FindRunsc)
	Listen    string // host:port for other machines of a cluster, either may be empty; "" = none may come
	Advertise string // host or host:port where they reach it; "" = what Listen amounts to
	Node      string // name of this machine in records; "" = its host name

	Foreground bool          // log to Output as well
	Output     io.Writer     // for people; nil = none
	Verbose    bool          // log debug messages
	IdleExit   time.Duration // end when nobody has needed the server for so long; 0 = never

	Store  string // where images are kept: a directory or s3://BUCKET; "" = where they were, or in Data
	Compat bool   // do what kernels before 6.12 and 6.9 need, though this one is newer
	Pool   int    // sandboxes created beforehand for each function with a snapshot; 0 = DefaultPool, negative = none
	NoFill bool   // fetch only what is read of images, and not the rest after something started
	Cache  int64  // bytes that the chunk cache may take; 0 = a part of the disk

	// Ready is called once: with nil when the socket answers, else with the reason
	// why it never will.
	Ready func(error)
}

// DefaultPool is one: a created sandbox costs some tens of MB, and saves about
// 100 ms of the next cold start of its function.
const DefaultPool = 1

func (o *Options) ensureDefaults() {
	if o.Pool == 0 {
		o.Pool = DefaultPool
	}
	o.Pool = max(o.Pool, 0)
	if o.Ready == nil {
		o.Ready = func(error) {}
	}
	if !o.Foreground {
		o.Output = nil
	}
	if o.Node == "" {
		o.Node, _ = os.Hostname()
	}
}

func (o *Options) validate() error {
	if o.IdleExit < 0 {
		return fault.New(fault.Invalid, "idle exit after %v: want a positive time, or 0 for never", o.IdleExit)
	}
	if o.Cache < 0 {
		return fault.New(fault.Invalid, "a cache of %d bytes", o.Cache)
	}
	return nil
}
