package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) imageShareCommand() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "share IMAGE",
		Short: "Make an image one that every workspace can use",
		Long: `Copy an image into the workspace "shared". Every workspace can then run shared/NAME and
build on it, and stores nothing of its own that is in it. Everybody may read it:
share bases, not secrets. "brisk image rm shared/NAME" takes it back.

Exit status: 0; 2 if the workspace may not share; 3 if there is no such image.`,
		Example: `  brisk image share python:3.12-slim
  brisk image share app-base --name base --json`,
		Args: cobra.ExactArgs(1),
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, args []string) error {
			if name == "" {
				name = args[0]
			}
			p := a.startProgress(name)
			r, err := c.Share(ctx, api.ShareRequest{Ref: args[0], Name: name}, p.update)
			p.stop()
			if err != nil {
				return err
			}
			return a.answer(r, func(w io.Writer) { writeImported(w, "shared", r) })
		})),
	}
	c.Flags().StringVar(&name, "name", "", "`name` in the shared workspace (default IMAGE); one that exists is moved to this image")
	return c
}
