package main

import (
	"context"
	"os"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/server"
)

// idleExit is when a server that a command started goes, if nobody needs it.
const idleExit = 15 * time.Minute

// client reaches a server that runs already.
func (a *app) client() (*api.Client, error) {
	p, err := server.PathsOf(a.data)
	if err != nil {
		return nil, err
	}
	return api.Dial(p.Socket(), a.workspace), nil
}

// startedClient reaches the server, after starting one in the background if none runs.
func (a *app) startedClient(ctx context.Context) (*api.Client, error) {
	p, err := server.PathsOf(a.data)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fault.Wrap(err, "find", "brisk's own binary")
	}
	defer a.afterPatience("starting a server")()
	_, err = server.EnsureRunning(ctx, p.Data, []string{self, "up", "--background", "--data", p.Data, "--idle-exit", idleExit.String()})
	if err != nil {
		return nil, err
	}
	return api.Dial(p.Socket(), a.workspace), nil
}

// asking makes a command's function of one that asks a server, started if need be.
func (a *app) asking(fn func(ctx context.Context, c *api.Client, args []string) error) func(ctx context.Context, args []string) error {
	return func(ctx context.Context, args []string) error {
		c, err := a.startedClient(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		return fn(ctx, c, args)
	}
}
