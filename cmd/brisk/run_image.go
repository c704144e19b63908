package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/scheduler"
)

// containerFlags are those of `brisk run --image`.
type containerFlags struct {
	image       string
	env         []string
	interactive bool
	request     scheduler.ContainerRequest
}

func (c *containerFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&c.image, "image", "", "run a command on this image, by `name` or digest")
	f.StringArrayVarP(&c.env, "env", "e", nil, "set a variable: `NAME=VALUE`, or NAME for brisk's own value; may be repeated")
	f.StringVarP(&c.request.Workdir, "workdir", "w", "", "start in this `directory` (default the image's)")
	f.StringVarP(&c.request.User, "user", "u", "", "run as this `user`, NAME or UID[:GID] (default the image's)")
	f.Float64Var(&c.request.CPU, "cpu", 0, "at most this `number` of cores, such as 0.5 (default 1)")
	f.Int64Var(&c.request.Memory, "memory", 0, "at most this much memory, in `MiB` (default 2048)")
	f.Int64Var(&c.request.Pids, "pids", 0, "at most this `number` of processes and threads (default 512)")
	f.BoolVar(&c.request.BlockNetwork, "block-network", false, "no network at all")
	f.StringArrayVar(&c.request.AllowNetworks, "allow-network", nil, "open this `prefix`, such as 10.1.0.0/16, beside the public internet; may be repeated")
	f.Float64Var(&c.request.Timeout, "timeout", 0, "kill it after this many `seconds` (default never)")
	f.BoolVarP(&c.interactive, "interactive", "i", false, "pass the terminal's input on")
}

// firstUsed names a flag that was given though no image was.
func (c *containerFlags) firstUsed(f *pflag.FlagSet) (name string) {
	f.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "data", "workspace", "json", "help":
		default:
			if f.Changed && name == "" {
				name = f.Name
			}
		}
	})
	return name
}

func (a *app) runImage(ctx context.Context, c *containerFlags, args []string) error {
	q := c.request
	q.Image, q.Args = c.image, args
	for _, v := range c.env {
		if !strings.Contains(v, "=") {
			value, ok := os.LookupEnv(v)
			if !ok {
				continue
			}
			v += "=" + value
		}
		if strings.HasPrefix(v, "=") {
			return fault.New(fault.Invalid, "--env %s: want NAME=VALUE", v)
		}
		q.Env = append(q.Env, v)
	}
	client, err := a.startedClient(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	var stdin io.Reader
	if c.interactive || !isTerminal(a.in) {
		stdin = a.in
	}
	exit, err := client.Run(ctx, q, stdin, relay{a.out, a.err})
	if err != nil {
		return err
	}
	if exit.OOM {
		a.tell("the container was killed: it needed more than its %d MiB of memory", cmp.Or(q.Memory, function.DefaultMemory))
	}
	if exit.Code != 0 {
		return exitError(exit.Code)
	}
	return nil
}

// relay passes a container's output on.
type relay struct{ out, err io.Writer }

func (relay) Accepted(string) error { return nil }

func (r relay) Log(stream string, p []byte) error {
	w := r.out
	if stream == "stderr" {
		w = r.err
	}
	_, err := w.Write(p)
	return err
}
