package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
)

func (a *app) storeFsckCommand() *cobra.Command {
	var q api.CheckRequest
	c := &cobra.Command{
		Use:   "fsck",
		Short: "Look whether everything that is stored is there and right",
		Long: `Look whether all that images need is in the store: manifests, metadata, packs. With
--full every byte is read and compared with its digest, in the machine's cache too.

A damaged image is named, with what is wrong. Importing, pulling or building it again
stores anew what is damaged, and nothing else; ` + "`brisk image rm`" + ` removes it. Damage in
the cache mends itself: what is wrong there is fetched again.

Exit status: 0; 70 if anything is damaged; 7 if the store cannot be reached.`,
		Example: `  brisk store fsck
  brisk store fsck --full --json | jq .damaged`,
		Args: cobra.NoArgs,
		RunE: work(a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
			return a.check(ctx, c, q)
		})),
	}
	c.Flags().BoolVar(&q.Full, "full", false, "read every byte")
	c.Flags().BoolVar(&q.Repair, "repair", false, "remove notes of collectors that cannot be read (with no other version of Brisk at the same bucket)")
	return c
}

func (a *app) check(ctx context.Context, c *api.Client, q api.CheckRequest) error {
	p := a.startProgress("checking")
	r, err := c.Check(ctx, q, func(_ string, done, total int64) { p.update(done, total) })
	p.stop()
	if err != nil {
		return err
	}
	for _, n := range r.Notes {
		a.tell("not checked: %s", n)
	}
	if err := a.answer(r, func(w io.Writer) { writeChecked(w, r) }); err != nil {
		return err
	}
	bad := len(r.Damaged)
	if bad == 0 && (len(r.Ledger) == 0 || q.Repair) {
		return nil
	}
	if bad == 0 {
		return fault.New(fault.Corrupt, "%s of collectors cannot be read", plural(len(r.Ledger), "note")).
			WithHint("If no other version of Brisk uses the store, `brisk store fsck --repair` removes them.")
	}
	is := "is"
	if bad > 1 {
		is = "are"
	}
	return fault.New(fault.Corrupt, "%s %s damaged", plural(bad, "image"), is).
		WithHint("Import, pull or build again what you need; `brisk image rm` removes the rest.")
}

func writeChecked(w io.Writer, r api.StoreCheck) {
	how := "looked at"
	if r.Full {
		how = "read"
	}
	fmt.Fprintf(w, "%s, %s of %s: %s\n", plural(int(r.Images), "image"), plural(int(r.Packs), "pack"), bytesText(r.Bytes), how)
	if c := r.Cache; c != nil {
		fmt.Fprintf(w, "cache: %s, %s, %s damaged\n", plural(int(c.Chunks), "chunk"), bytesText(c.Bytes), count(c.Damaged))
		for _, m := range append(c.Mended, c.Problems...) {
			fmt.Fprintf(w, "cache: %s\n", m)
		}
	}
	for _, key := range r.Ledger {
		fmt.Fprintf(w, "unreadable: %s\n", key)
	}
	if len(r.Damaged) == 0 {
		return
	}
	var rows [][]string
	for _, d := range r.Damaged {
		digest := ""
		if !d.Digest.IsZero() {
			digest = d.Digest.Short()
		}
		rows = append(rows, []string{dash(strings.Join(d.Names, ", ")), dash(digest), d.Workspace, d.Problem})
	}
	table(w, []string{"NAME", "DIGEST", "WORKSPACE", "PROBLEM"}, rows)
}
