package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

func (a *app) imageExportCommand() *cobra.Command {
	q := api.ExportRequest{}
	c := &cobra.Command{
		Use:   "export IMAGE FILE",
		Short: "Write an image to an archive",
		Long: `Write an image to an archive: an OCI layout in a tar, which "docker load", "podman load",
"skopeo copy oci-archive:" and "brisk image import" read, or a plain tar of the files.
The file tree is the same, bit for bit, and equal images give equal archives.
FILE is replaced if it is there, in one step at the end; "-" is standard output.

Exit status: 0; 2 if the image has what such an archive cannot hold; 3 if there is no
such image; 6 if the disk is full.`,
		Example: `  brisk image export app app.tar
  brisk image export app - --format tar | tar -t`,
		Args: cobra.ExactArgs(2),
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, args []string) error {
			q.Image = args[0]
			r, err := a.export(ctx, c, q, args[1])
			if err != nil {
				return err
			}
			a.warnLeftOut(r)
			if args[1] == "-" {
				return nil
			}
			return a.answer(r, func(w io.Writer) {
				fmt.Fprintf(w, "exported %s to %s: %s in %s\n", args[0], args[1], bytesText(r.Bytes), ms(r.MS))
			})
		})),
	}
	c.Flags().StringVar(&q.Format, "format", "oci", "of the archive: oci, or tar for the files alone")
	c.Flags().StringVar(&q.Compression, "compression", "gzip", "of the layers: gzip, zstd or none")
	return c
}

// export writes the archive to a file that appears when it is complete.
func (a *app) export(ctx context.Context, c *api.Client, q api.ExportRequest, path string) (r api.ExportResult, err error) {
	if path == "-" {
		if f, ok := a.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return r, fault.New(fault.Invalid, "an archive is nothing to look at").WithHint("Name a file, or send the output to one.")
		}
		p := a.startProgress(q.Image)
		defer p.stop()
		return c.Export(ctx, q, a.out, p.update)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return r, store.DiskError(err, "export to", path)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	p := a.startProgress(q.Image)
	r, err = c.Export(ctx, q, f, p.update)
	p.stop()
	if err != nil {
		return r, err
	}
	if err = f.Chmod(0o644); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return r, store.DiskError(err, "export to", path)
}
