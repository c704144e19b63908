package main

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/server"
)

func (a *app) upCommand() *cobra.Command {
	var background bool
	o := server.Options{Version: version, Output: os.Stderr}
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a server in the foreground",
		Long: `Run a server in the foreground until Ctrl-C or SIGTERM; a second one ends it at
once. It says "ready" when it is, which takes less than a second. Commands that
need a server start one by themselves; that one goes when it has been idle for
15 minutes.

Images are kept in the data directory, unless --store names another one or a
bucket of any S3 server when the data directory is used for the first time:

  s3://BUCKET[/PREFIX][?OPTION=VALUE&...]

  endpoint=URL      of the server (default Amazon's); also $AWS_ENDPOINT_URL
  region=NAME       also $AWS_REGION
  profile=NAME      of the shared configuration files; also $AWS_PROFILE
  ca=FILE           certificates that the server's may be signed with
  addressing=host   BUCKET.HOST instead of HOST/BUCKET
  anonymous=true    requests are not signed
  conditional=off   for servers without If-Match; one server of Brisk only

Credentials are taken from $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, the
files in ~/.aws, or the role of the container or machine. What is in a bucket is
encrypted, with the keys in the data directory.

Exit status: 0 after an orderly end, 2 if another server uses the data
directory, 6 if the machine lacks something, 7 if a store that is new to it does not
answer.`,
		Example: `  brisk up
  brisk up --data /srv/brisk
  brisk up --store 's3://team-images/brisk?region=eu-west-1'`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			o.Data, o.Foreground = a.data, !background
			return up(o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Runsc, "runsc", "", "`path` of the runsc binary; also $BRISK_RUNSC (default beside brisk, in /usr/local/lib/brisk, in the PATH)")
	f.StringVar(&o.Store, "store", os.Getenv("BRISK_STORE"), "`place` where images are kept: a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME; remembered; also $BRISK_STORE (default in the data directory)")
	f.StringVar(&o.Listen, "listen", os.Getenv("BRISK_LISTEN"), "`address` at which other machines of a cluster reach this one, such as :7720; also $BRISK_LISTEN (default none)")
	f.StringVar(&o.Advertise, "advertise", os.Getenv("BRISK_ADVERTISE"), "`address` that others are told, where --listen does not say it; also $BRISK_ADVERTISE")
	f.StringVar(&o.Node, "node", "", "`name` of this machine in records (default its host name)")
	f.DurationVar(&o.IdleExit, "idle-exit", 0, "end after this `time` without calls, instances and clients, such as 15m (default never)")
	f.IntVar(&o.Pool, "pool", server.DefaultPool, "`number` of sandboxes created beforehand for each function with a snapshot; -1 = none")
	f.Var((*size)(&o.Cache), "cache", "`size` that the chunk cache may have, such as 20G (default a tenth of the disk); it always leaves some of the disk free")
	f.BoolVar(&o.NoFill, "no-fill", false, "fetch only what is read of images, not the rest of one after something has started on it")
	f.BoolVar(&o.Compat, "compat", os.Getenv("BRISK_COMPAT") != "", "do what kernels before 6.12 and 6.9 need, though this one is newer; also $BRISK_COMPAT")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "log more")
	f.BoolVar(&background, "background", false, "log to the data directory only, survive the terminal")
	_ = f.MarkHidden("background")
	return c
}

// collectAt is the garbage, in per cent of what is in use, that the server collects
// at. Most of what it holds is indexes without pointers, so that collecting is cheap.
const collectAt = 20

func up(o server.Options) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	if os.Geteuid() != 0 {
		err := server.NotRoot()
		if ready := server.ReadyPipe(); ready != nil {
			ready(err)
		}
		return err
	}
	// Until here nothing has been done: this executes the program again.
	if err := server.EnterNamespace(o.Data); err != nil {
		if ready := server.ReadyPipe(); ready != nil {
			ready(err)
		}
		return err
	}
	if o.Ready = server.ReadyPipe(); o.Ready == nil {
		o.Ready = func(error) {}
	}
	return server.Run(context.Background(), o)
}
