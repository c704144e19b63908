package main

import (
	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/lazyfs"
)

// holderCommand is what package lazyfs starts; its arguments are that package's business.
func holderCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "holder",
		Short:              "Keep mounts alive over the death of a server (internal)",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return lazyfs.RunHolder(args...) },
	}
}
