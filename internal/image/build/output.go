package build

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
)

// maxOutput bounds what is kept of a step's output for those who still have to
// read it, in bytes. A pip install with everything going wrong prints a tenth.
const maxOutput = 4 << 20

// output collects what a step prints. The writer never waits for a reader:
// whoever is too slow, or comes late, misses the beginning.
type output struct {
	mu    sync.Mutex
	kept  []byte
	base  int64         // offset of kept in the whole output
	more  chan struct{} // closed when there is more, and made anew
	ended bool
}

func newOutput() *output { return &output{more: make(chan struct{})} }

// Write never fails.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, p...)
	if drop := len(o.kept) - maxOutput; drop > 0 {
		// Half of it at once: the copying costs nothing then.
		drop = max(drop, maxOutput/2)
		o.kept = append([]byte(nil), o.kept[drop:]...)
		o.base += int64(drop)
	}
	o.wake()
	return len(p), nil
}

// end tells readers that nothing comes any more.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.wake()
}

func (o *output) wake() {
	close(o.more)
	o.more = make(chan struct{})
}

// from gives a copy of the output from an offset on, and the next offset. If
// there is nothing, more is closed when there is; a nil more says that it has ended.
func (o *output) from(offset int64) (p []byte, next int64, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if lost := o.base - offset; lost > 0 {
		p = fmt.Appendf(p, "... (%d bytes are left out)\n", lost)
		offset = o.base
	}
	p = append(p, o.kept[offset-o.base:]...)
	next = o.base + int64(len(o.kept))
	if len(p) == 0 && o.ended {
		return nil, next, nil
	}
	return p, next, o.more
}

// tail gives the last lines.
func (o *output) tail(lines int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := bytes.TrimRight(o.kept, " \t\r\n")
	all := strings.Split(string(b), "\n")
	all = all[max(0, len(all)-lines):]
	for i, l := range all {
		const most = 2000 // a line of minified anything must not drown the rest
		if len(l) > most {
			l = l[:most] + "..."
		}
		all[i] = strings.TrimRight(l[strings.LastIndex(strings.TrimRight(l, "\r"), "\r")+1:], "\r") // what a progress bar showed last
	}
	return strings.Join(all, "\n")
}
