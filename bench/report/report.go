// Package report is the common form of Brisk's benchmarks: rows of times, each
// against a rival measured in the same run, printed as a table and kept as JSON
// in bench/results/NAME.json.
//
// A ratio is always Brisk's time over the other's, sample by sample where samples
// are paired: smaller is better, and Target is its upper limit. A row without a
// rival has a Value with a Unit and a Limit instead.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// Spread is a median with its extremes.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Of computes the spread of samples; it panics on none.
func Of(samples []float64) Spread {
	s := slices.Sorted(slices.Values(samples))
	m := s[len(s)/2]
	if len(s)%2 == 0 {
		m = (s[len(s)/2-1] + m) / 2
	}
	return Spread{Median: m, Min: s[0], Max: s[len(s)-1]}
}

// Row is one line of a benchmark.
type Row struct {
	Case      string   `json:"case"`      // what was done
	Condition string   `json:"condition"` // caches and the like
	Against   string   `json:"against,omitempty"`
	N         int      `json:"n"`
	MS        *Spread  `json:"ms,omitempty"` // Brisk's times, in milliseconds
	Ratio     *Spread  `json:"ratio,omitempty"`
	Target    *float64 `json:"target,omitempty"` // upper limit of the median ratio
	Value     *float64 `json:"value,omitempty"`
	Unit      string   `json:"unit,omitempty"`
	Limit     *float64 `json:"limit,omitempty"`
	Met       *bool    `json:"met,omitempty"`
}

// Paired makes a row of Brisk's samples and the rival's, the i-th of each measured
// next to one another. A target of 0 means none.
func Paired(name, condition, against string, ours, theirs []float64, target float64) Row {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / theirs[i]
	}
	ms, ratio := Of(ours), Of(ratios)
	r := Row{Case: name, Condition: condition, Against: against, N: len(ours), MS: &ms, Ratio: &ratio}
	if target > 0 {
		met := ratio.Median <= target
		r.Target, r.Met = &target, &met
	}
	return r
}

// Value makes a row with a number of its own. A limit of 0 means none.
func Value(name, condition string, n int, value float64, unit string, limit float64) Row {
	r := Row{Case: name, Condition: condition, N: n, Value: &value, Unit: unit}
	if limit > 0 {
		met := value <= limit
		r.Limit, r.Met = &limit, &met
	}
	return r
}

// Times makes a row of times that are compared with nothing.
func Times(name, condition string, samples []float64) Row {
	ms := Of(samples)
	return Row{Case: name, Condition: condition, N: len(samples), MS: &ms}
}

// Report is a whole run.
type Report struct {
	Machine string `json:"machine"`
	Kernel  string `json:"kernel"`
	Load    string `json:"load"` // 1, 5 and 15 minutes, before the run
	Rows    []Row  `json:"rows"`
}

// New describes the machine as it is now.
func New() *Report {
	return &Report{Machine: fmt.Sprintf("%s, %d CPUs, %s", cpu(), runtime.NumCPU(), memory()), Kernel: first("/proc/sys/kernel/osrelease"), Load: strings.Join(strings.Fields(first("/proc/loadavg"))[:3], " ")}
}

func first(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown unknown unknown"
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}

func cpu() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for l := range strings.SplitSeq(string(b), "\n") {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown CPU"
}

func memory() string {
	var kb int64
	_, _ = fmt.Sscanf(first("/proc/meminfo"), "MemTotal: %d kB", &kb)
	return fmt.Sprintf("%d GiB", (kb+1<<19)>>20)
}

// Print writes the table.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s, kernel %s, load %s\n", r.Machine, r.Kernel, r.Load)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "case\tcondition\tn\tmedian ms\tmin\tmax\tagainst\tratio\tmin\tmax\ttarget\tmet")
	for _, row := range r.Rows {
		cells := []string{row.Case, row.Condition, fmt.Sprint(row.N), "", "", "", row.Against, "", "", "", "", ""}
		switch {
		case row.MS != nil:
			cells[3], cells[4], cells[5] = num(row.MS.Median), num(row.MS.Min), num(row.MS.Max)
		case row.Value != nil:
			cells[3] = num(*row.Value) + " " + row.Unit
		}
		if row.Ratio != nil {
			cells[7], cells[8], cells[9] = num(row.Ratio.Median), num(row.Ratio.Min), num(row.Ratio.Max)
		}
		if row.Target != nil {
			cells[10] = num(*row.Target)
		} else if row.Limit != nil {
			cells[10] = num(*row.Limit) + " " + row.Unit
		}
		if row.Met != nil {
			cells[11] = map[bool]string{true: "yes", false: "NO"}[*row.Met]
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

func num(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// Save writes dir/name.json. With merge, rows that are there already and were not
// measured now stay, in their order, and new ones go to the end; the rest of the report is this run's.
func (r *Report) Save(dir, name string, merge bool) error {
	path := filepath.Join(dir, name+".json")
	out := *r
	if merge {
		var old Report
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &old)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		out.Rows = merged(old.Rows, r.Rows)
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func merged(old, now []Row) []Row {
	out := slices.Clone(old)
	for _, row := range now {
		same := func(o Row) bool {
			return o.Case == row.Case && o.Condition == row.Condition && o.Against == row.Against
		}
		if i := slices.IndexFunc(out, same); i >= 0 {
			out[i] = row
		} else {
			out = append(out, row)
		}
	}
	return out
}
