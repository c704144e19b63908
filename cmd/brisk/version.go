package main

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	sdk "brisk.dev/brisk/sdk/python"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which Brisk this is",
		Args:  cobra.NoArgs,
		RunE: work(func(context.Context, []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				SDK     string `json:"sdk"` // digest of the Python package that is built in
			}{version, runtime.Version(), sdk.Digest().String()}
			return a.answer(v, func(w io.Writer) {
				fmt.Fprintf(w, "brisk %s (%s, sdk %s)\n", v.Version, v.Go, v.SDK[:12])
			})
		}),
	}
}
