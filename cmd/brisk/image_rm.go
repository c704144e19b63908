package main

import (
	"context"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
)

func (a *app) imageRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove names of images, and images that have no name then",
		Long: `Remove names; an image that has none left goes, with all that no other image
needs. With a digest, all names of the image go. An image that something runs on
stays.

Exit status: 0; 2 if something runs on an image; 3 if there is no such image.`,
		Args: cobra.MinimumNArgs(1),
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, args []string) error {
			for _, ref := range args {
				if err := c.RemoveImage(ctx, ref); err != nil {
					return err
				}
			}
			return nil
		})),
	}
}
