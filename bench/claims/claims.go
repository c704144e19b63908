// Package claims writes the tables of figures in README.md and bench/README.md out
// of bench/results, so that no figure is there that no run has given. Its test
// fails when they differ; UPDATE_DOCS=1 makes it write them.
package claims

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"brisk.dev/brisk/bench/report"
)

// A headline is a row that the README shows, in words for people who have not read
// about the benchmark.
type headline struct {
	results, name, condition, against string // of the row
	words                             string
}

var headlines = []headline{
	{"cold", "numpy mean", "created beforehand, page cache warm", "", "cold start of a numpy function from its snapshot, sandbox created beforehand"},
	{"cold", "numpy mean", "nothing created, page cache warm", "", "the same, nothing created"},
	{"cold", "torch resnet50", "created beforehand, page cache warm", "", "cold start of torch and resnet50 with its forward pass, sandbox created beforehand"},
	{"images", "import", "image complete, page cache dropped", "", "`import numpy, pandas, sklearn` from a mounted image, page cache dropped"},
	{"images", "stat", "image complete, page cache dropped", "", "`stat` of every file of it, page cache dropped"},
	{"images", "import", "lazily mounted, chunks in the slab, page cache dropped", "", "the same import while the image is not complete, page cache dropped"},
	{"images", "import of a new image of 1.2 GB", "gzip layers, in the page cache; durable", "tar -xz of its layers to ext4, not synced", "import of a new image of 1.2 GB, durable"},
}

// Tables gives what belongs between the markers of each document, by its path from
// the root of the repository, for the results in a directory.
func Tables(results string) (map[string]string, error) {
	all := map[string]*report.Report{}
	paths, err := filepath.Glob(filepath.Join(results, "*.json"))
	if err != nil {
		return nil, err
	}
	var whole strings.Builder
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		r := &report.Report{}
		if err := json.Unmarshal(b, r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		all[name] = r
		full(&whole, name, r)
	}
	var short strings.Builder
	short.WriteString("| what | against | n | ratio of times, median (min to max) |\n|---|---|---|---|\n")
	for _, h := range headlines {
		row, ok := find(all[h.results], h)
		if !ok {
			return nil, fmt.Errorf("%s.json has no row %q, %q: run that benchmark again", h.results, h.name, h.condition)
		}
		fmt.Fprintf(&short, "| %s | %s | %d | **%s** (%s to %s) |\n", h.words, row.Against, row.N, number(row.Ratio.Median), number(row.Ratio.Min), number(row.Ratio.Max))
	}
	return map[string]string{"README.md": short.String(), "bench/README.md": whole.String()}, nil
}

func find(r *report.Report, h headline) (report.Row, bool) {
	if r != nil {
		for _, row := range r.Rows {
			if row.Case == h.name && row.Condition == h.condition && (h.against == "" || row.Against == h.against) && row.Ratio != nil {
				return row, true
			}
		}
	}
	return report.Row{}, false
}

// full writes all rows of a benchmark.
func full(b *strings.Builder, name string, r *report.Report) {
	fmt.Fprintf(b, "\n### %s\n\n%s, Linux %s; load before the run: %s.\n\n", name, r.Machine, r.Kernel, r.Load)
	b.WriteString("| case | condition | n | Brisk: median (min to max) | against | ratio: median (min to max) | limit | met |\n|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		var value, ratio, limit, met string
		switch {
		case row.MS != nil:
			value = spread(*row.MS) + " ms"
		case row.Value != nil:
			value = number(*row.Value) + " " + row.Unit
		}
		if row.Ratio != nil {
			ratio = "**" + number(row.Ratio.Median) + "** (" + number(row.Ratio.Min) + " to " + number(row.Ratio.Max) + ")"
		}
		if row.Target != nil {
			limit = plain(*row.Target)
		} else if row.Limit != nil {
			limit = plain(*row.Limit) + " " + row.Unit
		}
		if row.Met != nil {
			met = map[bool]string{true: "yes", false: "**no**"}[*row.Met]
		}
		fmt.Fprintf(b, "| %s | %s | %d | %s | %s | %s | %s | %s |\n", row.Case, row.Condition, row.N, value, row.Against, ratio, limit, met)
	}
}

func spread(s report.Spread) string {
	if s.Min == s.Max {
		return number(s.Median)
	}
	return number(s.Median) + " (" + number(s.Min) + " to " + number(s.Max) + ")"
}

// number gives three digits or so.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Markers of the generated part of a document.
const (
	begin = "<!-- figures: from bench/results, by bench/claims -->\n"
	end   = "<!-- end of figures -->\n"
)

// Insert puts a table between the markers of a document.
func Insert(document, table string) (string, error) {
	before, rest, ok := strings.Cut(document, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the document has no markers for figures")
	}
	return before + begin + "\n" + strings.TrimLeft(table, "\n") + "\n" + end + after, nil
}
