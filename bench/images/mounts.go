package main

import (
	"brisk.dev/brisk/bench/drive"
	"brisk.dev/brisk/bench/report"
)

// row is an operation under a condition, with the limits for both kinds of mount.
type row struct {
	operation    string
	cold         bool
	native, lazy float64
}

var rows = []row{
	{"find", true, 0.7, 0.75},
	{"stat", true, 0.7, 0.75},
	{"import", true, 1.0, 1.2},
	{"import", false, 1.05, 1.05},
	{"sequential read", true, 1.2, 1.5},
	{"sequential read", false, 1.05, 1.1},
	{"random 4K reads", false, 1.05, 1.2},
	{"mmap faults", false, 2, 3},
}

// mounts compares a mounted image with its files, extracted on the filesystem that
// the slab is on.
func mounts(o options) ([]report.Row, error) {
	tree, err := extracted(o, "science")
	if err != nil {
		return nil, err
	}
	var out []report.Row
	for _, kind := range []string{"natively", "lazily"} {
		m, err := newMachine(o)
		if err != nil {
			return nil, err
		}
		got, err := m.compare(o, kind, tree)
		if cerr := m.close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

func (m *machine) compare(o options, kind, tree string) ([]report.Row, error) {
	img, err := m.complete(o, tree)
	if err != nil {
		return nil, err
	}
	mount := m.natively
	if kind == "lazily" {
		mount = m.lazily
	}
	root, err := mount(o, img)
	if err != nil {
		return nil, err
	}
	var out []report.Row
	for _, r := range rows {
		condition, limit := "image complete", r.native
		if kind == "lazily" {
			condition, limit = "lazily mounted, chunks in the slab", r.lazy
		}
		temperature := ", page cache warm"
		if r.cold {
			temperature = ", page cache dropped"
		}
		progress("%s, %s%s", r.operation, condition, temperature)
		var ours, theirs []float64
		for i := range o.n {
			pair := [2]float64{}
			for j := range pair {
				j = (i + j) % 2 // in turn first
				at := []string{root, tree}[j]
				if r.cold {
					if err := drive.DropCaches(); err != nil {
						return nil, err
					}
				} else if _, err := timed(o, r.operation, at); err != nil { // warms
					return nil, err
				}
				if pair[j], err = timed(o, r.operation, at); err != nil {
					return nil, err
				}
			}
			ours, theirs = append(ours, pair[0]), append(theirs, pair[1])
		}
		out = append(out, report.Paired(r.operation, condition+temperature, "the same tree on ext4", ours, theirs, limit))
	}
	return out, nil
}
