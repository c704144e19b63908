package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/doctor"
	"brisk.dev/brisk/internal/server"
)

func (a *app) doctorCommand() *cobra.Command {
	var runsc, storePlace string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine lacks for Brisk, and what to do",
		Long: `Look at this machine: kernel, filesystems, control groups, networks, programs,
memory, disk, and the store of images if it is elsewhere. It needs no server and
changes nothing.

Exit status: 0 if Brisk works here, 6 if it does not.`,
		Args: cobra.NoArgs,
		RunE: work(func(ctx context.Context, _ []string) error { return a.doctor(ctx, runsc, storePlace) }),
	}
	c.Flags().StringVar(&runsc, "runsc", "", "`path` of the runsc binary; also $BRISK_RUNSC")
	c.Flags().StringVar(&storePlace, "store", os.Getenv("BRISK_STORE"), "`place` of images, as of brisk up; also $BRISK_STORE (default the one that the data directory remembers)")
	return c
}

func (a *app) doctor(ctx context.Context, runsc, storePlace string) error {
	p, err := server.PathsOf(a.data)
	if err != nil {
		return err
	}
	found, _ := server.FindRunsc(runsc) // that there is none is a finding
	var images doctor.Store
	place, err := server.FindPlace(p, storePlace)
	switch {
	case err != nil:
		images.Err = err
	case !place.Own:
		images.Place = place.URL
		images.Try = func(ctx context.Context) error { return server.CheckPlace(ctx, place) }
	}
	results := doctor.Check(ctx, doctor.Options{DataDir: p.Data, RunDir: p.Run, Runsc: found, Store: images})
	err = a.answer(results, func(w io.Writer) {
		var rows [][]string
		for _, r := range results {
			rows = append(rows, []string{string(r.Status), r.Name, r.Detail})
		}
		table(w, []string{"STATUS", "WHAT", "FOUND"}, rows)
		for _, r := range results {
			if r.Fix != "" {
				fmt.Fprintf(w, "\n%s: %s\n", r.Name, r.Fix)
			}
		}
	})
	if err != nil {
		return err
	}
	return doctor.Err(results)
}
