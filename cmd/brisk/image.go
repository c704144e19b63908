package main

import "github.com/spf13/cobra"

func (a *app) imageCommand() *cobra.Command {
	return groupOf("image", "Import, list, inspect and remove images",
		a.imageImportCommand(), a.imagePullCommand(), a.imageBuildCommand(), a.imagePushCommand(), a.imageExportCommand(), a.imageDiffCommand(), a.imageShareCommand(), a.imageListCommand(), a.imageInspectCommand(), a.imageRemoveCommand())
}
