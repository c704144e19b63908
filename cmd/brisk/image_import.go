package main

import (
	"context"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
)

func (a *app) imageImportCommand() *cobra.Command {
	var name, tag string
	c := &cobra.Command{
		Use:   "import PATH --name NAME",
		Short: "Make an image of an archive or a directory",
		Long: `Make an image of an OCI layout (directory or archive), an archive of docker save, a
tar of a root filesystem, or a directory. What PATH is, is found out by looking;
archives may be compressed. What is stored already is not stored again.

Exit status: 0; 2 if PATH is no image; 3 if there is no PATH, or no TAG in it; 6 if the disk is full.`,
		Example: `  docker save web | zstd > web.tar.zst && brisk image import web.tar.zst --name web
  brisk image import ./layout --tag 3.12-slim --name python
  brisk image import ./rootfs --name base --json`,
		Args: cobra.ExactArgs(1),
		RunE: work(func(ctx context.Context, args []string) error {
			if name == "" {
				return fault.New(fault.Invalid, "import wants --name NAME")
			}
			path, err := filepath.Abs(args[0])
			if err != nil {
				return fault.Wrap(err, "find", args[0])
			}
			return a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
				return a.importImage(ctx, c, api.ImportRequest{Path: path, Tag: tag, Name: name})
			})(ctx, args)
		}),
	}
	c.Flags().StringVar(&name, "name", "", "`name` of the image; one that exists is moved to the new image")
	c.Flags().StringVar(&tag, "tag", "", "`tag` or digest of the image, if PATH holds several")
	return c
}

func (a *app) importImage(ctx context.Context, c *api.Client, q api.ImportRequest) error {
	p := a.startProgress(q.Name)
	r, err := c.Import(ctx, q, p.update)
	p.stop()
	if err != nil {
		return err
	}
	for _, s := range r.Skipped {
		a.tell("%s is a mount point, and was left out", s)
	}
	return a.answer(r, func(w io.Writer) { writeImported(w, "imported", r) })
}
