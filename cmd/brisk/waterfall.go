package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/trace"
)

// writeCall explains a call in columns characters a line.
func writeCall(w io.Writer, r scheduler.CallRecord, columns int) {
	fmt.Fprintf(w, "call %s of %s.%s: %s, %s\n", r.ID, dash(r.App), r.Function, r.State, ms(r.MS))
	pairs := []string{
		"created", r.Created.Local().Format("2006-01-02 15:04:05.000"),
		"start", dash(r.Start),
		"instance", dash(r.Instance) + " on " + dash(r.Node),
		"function", r.Digest.String(),
	}
	if o := r.Origin; o != nil {
		pairs = append(pairs, "image", fmt.Sprintf("%s read from the origin (%s chunks), %s from the cache (%s), of %s",
			bytesText(o.OriginBytes), count(o.OriginChunks), bytesText(o.CacheBytes), count(o.CacheChunks), bytesText(o.ImageBytes)))
	}
	if e := r.Error; e != nil {
		pairs = append(pairs, "error", fmt.Sprintf("%s (%s)", e.Message, e.Class))
		if e.Hint != "" {
			pairs = append(pairs, "", e.Hint)
		}
	}
	fields(w, pairs...)
	if len(r.Steps) > 0 {
		fmt.Fprintln(w)
		writeWaterfall(w, r.Steps, r.MS, columns)
	}
}

// Bars get what names and numbers leave of a line, and give up to a third of it to
// notes; a longer note has a line of its own.
const (
	numbersWidth = 10 + 10 + 2 // the two columns of times, and a margin
	narrowest    = 10          // columns that bars are drawn in
)

// writeWaterfall draws steps as bars over the time from 0 to total, one a line, in
// the order of their starts, those around others first.
func writeWaterfall(w io.Writer, steps []trace.Step, total float64, columns int) {
	steps = slices.Clone(steps)
	slices.SortStableFunc(steps, func(a, b trace.Step) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), -cmp.Compare(a.MS, b.MS))
	})
	nameWidth := len("STEP")
	for _, s := range steps {
		nameWidth = max(nameWidth, utf8.RuneCountInString(s.Name))
		total = max(total, s.Start+s.MS)
	}
	left := max(columns-nameWidth-numbersWidth, narrowest)
	noteWidth := 0
	for _, s := range steps {
		if n := utf8.RuneCountInString(s.Note) + 2; s.Note != "" && n <= left/3 {
			noteWidth = max(noteWidth, n)
		}
	}
	bars := max(left-noteWidth, narrowest)
	fmt.Fprintf(w, "%s%10s%10s\n", pad("STEP", nameWidth), "AT MS", "MS")
	for _, s := range steps {
		line := fmt.Sprintf("%s%10.2f%10.2f  %s", pad(s.Name, nameWidth), s.Start, s.MS, pad(bar(s.Start, s.MS, total, bars), bars))
		switch n := utf8.RuneCountInString(s.Note) + 2; {
		case s.Note != "" && n <= noteWidth:
			line += "  " + s.Note
		case s.Note != "":
			line = strings.TrimRight(line, " ") + "\n  " + s.Note
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// bar draws a span in n cells; what happens at all is at least one.
func bar(start, length, total float64, n int) string {
	if total <= 0 {
		return ""
	}
	cell := func(t float64) int { return min(int(t/total*float64(n)+0.5), n) }
	from := min(cell(start), n-1)
	to := max(cell(start+length), from+1)
	return strings.Repeat(" ", from) + strings.Repeat("█", to-from)
}

// pad fills s up to n characters.
func pad(s string, n int) string {
	return s + strings.Repeat(" ", max(n-utf8.RuneCountInString(s), 0))
}
