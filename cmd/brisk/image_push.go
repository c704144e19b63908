package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/image/registry"
)

func (a *app) imagePushCommand() *cobra.Command {
	var insecure bool
	var compression string
	c := &cobra.Command{
		Use:   "push IMAGE REF",
		Short: "Put an image into a registry",
		Long: `Put an image into a registry as a container image: REF is REGISTRY/REPOSITORY[:TAG].
The file tree is the same, bit for bit; equal images have equal layers. What the
registry has already is not sent.

Credentials are looked up where docker, podman and buildah keep them, as by "brisk
image pull".

Exit status: 0; 2 if REF cannot be used or the registry refuses; 3 if there is no
such image; 7 if the registry does not answer.`,
		Example: `  brisk image push app localhost:5000/team/app:1
  brisk image push app registry.example.com/team/app --compression zstd --json`,
		Args: cobra.ExactArgs(2),
		RunE: work(func(ctx context.Context, args []string) error {
			ref, err := registry.ParseRef(args[1], insecure)
			if err != nil {
				return err
			}
			auth, err := registry.FindAuth(ref)
			if err != nil {
				return err
			}
			return a.asking(func(ctx context.Context, c *api.Client, args []string) error {
				p := a.startProgress(args[0])
				r, err := c.Push(ctx, api.PushRequest{Image: args[0], Ref: args[1], Compression: compression, Insecure: insecure, Auth: &auth}, p.update)
				p.stop()
				if err != nil {
					return err
				}
				a.warnLeftOut(r)
				return a.answer(r, func(w io.Writer) {
					fmt.Fprintf(w, "pushed %s to %s: %s, %s sent, %s in %s\n", args[0], args[1], plural(r.Layers, "layer"), bytesText(r.Sent), r.Digest, ms(r.MS))
				})
			})(ctx, args)
		}),
	}
	c.Flags().BoolVar(&insecure, "insecure", false, "allow plain http, and certificates that are not trusted here")
	c.Flags().StringVar(&compression, "compression", "gzip", "of the layers: gzip, zstd or none")
	return c
}

// warnLeftOut names files that a container image cannot have.
func (a *app) warnLeftOut(r api.ExportResult) {
	for _, path := range r.LeftOut {
		fmt.Fprintf(a.err, "brisk: left out: %s\n", path)
	}
}
