package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) imageInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Describe an image, and what has been read of it",
		Long: `Describe an image, by name or by the first digits of its digest: how its processes
start, how large it is, how it is mounted, how much of it is on this machine, and
how much has been read since the server started.

A lazy mount fetches what is read when it is read; how much that was is counted.
A complete image is mounted natively from its next start on: the kernel then reads
the cache without asking Brisk, and counts nothing.

Exit status: 0; 3 if there is no such image.`,
		Args: cobra.ExactArgs(1),
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, args []string) error {
			d, err := c.Image(ctx, args[0])
			if err != nil {
				return err
			}
			return a.answer(d, func(w io.Writer) { writeImage(w, d) })
		})),
	}
}

func writeImage(w io.Writer, d api.ImageDetail) {
	mounted := "no"
	if d.Mounted {
		mounted = strings.Join(d.Mounts, ", ")
	}
	pairs := []string{
		"name", dash(d.Name),
		"digest", d.Digest.String(),
		"created", d.Created.Local().Format("2006-01-02 15:04:05"),
		"files", count(d.Files),
		"size", bytesText(d.Bytes),
		"chunks", fmt.Sprintf("%s in %s packs", count(d.Chunks), count(d.Packs)),
		"metadata", bytesText(d.Metadata),
		"mounted", mounted,
	}
	if d.OwnBytes != nil && d.SharedBytes != nil {
		pairs = append(pairs, "content", fmt.Sprintf("%s that no other image has, %s that others have too", bytesText(*d.OwnBytes), bytesText(*d.SharedBytes)))
	}
	if l := d.Local; l != nil {
		local := "complete"
		if l.Chunks < d.Chunks {
			local = fmt.Sprintf("%d%%, %s of %s", 100*l.Bytes/max(l.TotalBytes, 1), bytesText(l.Bytes), bytesText(l.TotalBytes))
		}
		pairs = append(pairs, "local", local)
	}
	if r := d.Read; r != nil {
		pairs = append(pairs, "read", fmt.Sprintf("%s from the origin (%s chunks), %s from the cache (%s chunks)",
			bytesText(r.OriginBytes), count(r.OriginChunks), bytesText(r.CacheBytes), count(r.CacheChunks)))
	}
	for i, p := range d.Profiles {
		name := ""
		if i == 0 {
			name = "profiles"
		}
		hot := ""
		if p.Hot > 0 {
			hot = ", in a hot pack"
		}
		pairs = append(pairs, name, fmt.Sprintf("%s: %s chunks, %s, of %s%s", p.Entry, count(p.Chunks), bytesText(p.Bytes), plural(int(p.Runs), "start"), hot))
	}
	pairs = append(pairs,
		"entrypoint", dash(strings.Join(d.Config.Entrypoint, " ")),
		"command", dash(strings.Join(d.Config.Cmd, " ")),
		"workdir", dash(d.Config.Workdir),
		"user", dash(d.Config.User))
	for i, v := range d.Config.Env {
		name := ""
		if i == 0 {
			name = "env"
		}
		pairs = append(pairs, name, v)
	}
	fields(w, pairs...)
}
