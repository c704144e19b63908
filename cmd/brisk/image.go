package main

import "github.com/spf13/cobra"

func (a *app) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Import, list, inspect and remove images"}
	c.AddCommand(a.imageImportCommand(), a.imageListCommand(), a.imageInspectCommand(), a.imageRemoveCommand())
	return c
}
