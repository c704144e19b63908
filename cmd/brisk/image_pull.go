package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/image/registry"
)

func (a *app) imagePullCommand() *cobra.Command {
	var name string
	var insecure bool
	c := &cobra.Command{
		Use:   "pull REF",
		Short: "Make an image of one in a registry",
		Long: `Make an image of a container image in a registry: REGISTRY/REPOSITORY[:TAG|@DIGEST],
as docker takes it. Of an index, the image for linux/amd64 is taken. Layers that
have been read before, by a pull or an import, are not fetched again.

Credentials are looked up where docker, podman and buildah keep them, helpers included:
~/.docker/config.json, $DOCKER_CONFIG, $REGISTRY_AUTH_FILE.

Exit status: 0; 2 if REF cannot be used or the registry refuses; 3 if there is no
such image; 6 if the disk is full; 7 if the registry does not answer; 70 if what it
answers is damaged.`,
		Example: `  brisk image pull python:3.12-slim
  brisk image pull localhost:5000/team/app@sha256:... --name app --json`,
		Args: cobra.ExactArgs(1),
		RunE: work(func(ctx context.Context, args []string) error {
			ref, err := registry.ParseRef(args[0], insecure)
			if err != nil {
				return err
			}
			auth, err := registry.FindAuth(ref)
			if err != nil {
				return err
			}
			if name == "" {
				name = args[0]
			}
			return a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
				return a.pullImage(ctx, c, api.PullRequest{Ref: args[0], Name: name, Insecure: insecure, Auth: &auth})
			})(ctx, args)
		}),
	}
	c.Flags().StringVar(&name, "name", "", "`name` of the image (default REF); one that exists is moved to the new image")
	c.Flags().BoolVar(&insecure, "insecure", false, "allow plain http, and certificates that are not trusted here")
	return c
}

func (a *app) pullImage(ctx context.Context, c *api.Client, q api.PullRequest) error {
	p := a.startProgress(q.Name)
	r, err := c.Pull(ctx, q, p.update)
	p.stop()
	if err != nil {
		return err
	}
	return a.answer(r, func(w io.Writer) { writeImported(w, "pulled", r) })
}

// writeImported is the one line about what an import or a pull did.
func writeImported(w io.Writer, did string, r api.ImportResult) {
	layers := ""
	if r.Layers > 0 {
		layers = fmt.Sprintf("%s (%d known), ", plural(r.Layers, "layer"), r.KnownLayers)
	}
	fmt.Fprintf(w, "%s %s: %s  %s%s files, %s, %s (%s) in %s\n", did, r.Name, r.Digest.Short(),
		layers, count(r.Files), bytesText(r.Bytes), plural(int(r.NewChunks), "new chunk"), bytesText(r.NewBytes), ms(r.MS))
}
