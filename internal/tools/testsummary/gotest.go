package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

const module = "brisk.dev/brisk/"

// event is a line of go test -json (see go doc test2json).
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// goTest runs go test and reports on it. An error means that its tests cannot be
// counted.
func goTest(ctx context.Context, args []string, stdout, stderr io.Writer) (counts, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return counts{}, err
	}
	if err := cmd.Start(); err != nil {
		return counts{}, err
	}
	r := report{out: stdout, packages: map[string]*pkg{}}
	readErr := r.read(out)
	err = cmd.Wait()
	if readErr == nil && r.sum.Failed == 0 {
		// What failed is no test: go itself says what it was, on its standard error.
		readErr = err
	}
	return r.sum, readErr
}

// report follows the events of one run.
type report struct {
	out      io.Writer
	packages map[string]*pkg
	sum      counts
}

// pkg is a package whose tests are running.
type pkg struct {
	tests map[string]*test // "" is the package itself
	order []string
	counts
}

type test struct {
	output  strings.Builder
	outcome string // pass, fail, skip; "" while it runs
	parent  bool
}

func (r *report) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil {
				r.add(e)
			} else {
				r.print("%s", line) // go's own words, about flags for example
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) print(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) }

func (r *report) add(e event) {
	if e.Action == "build-output" {
		r.print("%s", e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &pkg{tests: map[string]*test{}}
		r.packages[e.Package] = p
	}
	t := p.test(e.Test)
	switch e.Action {
	case "output":
		if !noise(e.Output) {
			t.output.WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		t.outcome = e.Action
		if e.Test == "" {
			r.end(strings.TrimPrefix(e.Package, module), p, e)
			delete(r.packages, e.Package)
		}
	}
}

func (p *pkg) test(name string) *test {
	t := p.tests[name]
	if t == nil {
		t = &test{}
		p.tests[name] = t
		p.order = append(p.order, name)
		for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
			p.test(name[:i]).parent = true
		}
	}
	return t
}

// end counts and prints a package whose last event e is.
func (r *report) end(name string, p *pkg, e event) {
	var failed, skipped []string
	for _, n := range p.order {
		t := p.tests[n]
		switch {
		case n == "":
		case t.outcome == "skip":
			p.Skipped++
			skipped = append(skipped, n)
		case t.outcome == "pass" && t.parent:
		case t.outcome == "pass":
			p.Passed++
		default: // failed, or the process died under it
			failed = append(failed, n)
			if !t.parent {
				p.Failed++
			}
		}
	}
	what := fmt.Sprintf("%d of %d tests failed", p.Failed, p.Passed+p.Failed+p.Skipped)
	if e.Action == "fail" && p.Failed == 0 {
		p.Failed = 1
		what = "failed outside its tests" // in TestMain, or in a parent of subtests
	}
	if e.FailedBuild != "" {
		what = "does not build"
	}
	r.sum.Passed += p.Passed
	r.sum.Failed += p.Failed
	r.sum.Skipped += p.Skipped

	switch {
	case e.Action == "fail":
		slices.Sort(failed)
		for _, n := range append(failed, "") {
			r.print("%s", p.tests[n].output.String())
		}
		r.print("  FAIL  %s: %s\n", name, what)
	case p.Passed+p.Skipped > 0:
		cached := ""
		if strings.Contains(p.tests[""].output.String(), "(cached)") {
			cached = ", as before"
		}
		r.print("  ok    %s: %d tests, %.1f s%s\n", name, p.Passed+p.Skipped, e.Elapsed, cached)
	}
	for _, n := range skipped {
		r.print("        skipped: %s: %s\n", n, reason(p.tests[n].output.String()))
	}
}

// noise is what go test says about each test and package, which the report says
// itself; "ok" stays, since it says whether the result is cached.
func noise(line string) bool {
	s := strings.TrimLeft(line, " ")
	return slices.ContainsFunc([]string{"=== ", "--- PASS", "--- SKIP", "PASS\n", "FAIL\n", "FAIL\t", "coverage: "}, func(prefix string) bool {
		return strings.HasPrefix(s, prefix)
	})
}

// reason is the last line that a skipped test printed, without its place.
func reason(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if _, after, found := strings.Cut(last, ".go:"); found {
		if _, text, found := strings.Cut(after, ": "); found {
			return text
		}
	}
	return last
}
