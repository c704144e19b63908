package main

import (
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// patience is how long work may take without a sign of life.
const patience = 2 * time.Second

// afterPatience says what takes so long, if it does. The returned function ends
// the wait.
func (a *app) afterPatience(text string) (done func()) {
	over := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-time.After(patience):
			if !a.json {
				a.tell("%s", text)
			}
		case <-over:
		}
	}()
	return func() { close(over); <-ended }
}

// progress is a bar on a terminal, for work that takes longer than patience.
type progress struct {
	name  string
	to    io.Writer // nil: no terminal, no bar
	began time.Time

	mu   sync.Mutex
	bars *mpb.Progress
	bar  *mpb.Bar
}

func (a *app) startProgress(name string) *progress {
	p := &progress{name: name, began: time.Now()}
	if !a.json && isTerminal(a.err) {
		p.to = a.err
	}
	return p
}

// update says how far the work is; total is 0 while that is not known.
func (p *progress) update(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to == nil {
		return
	}
	if p.bar == nil {
		if time.Since(p.began) < patience {
			return
		}
		p.bars = mpb.New(mpb.WithOutput(p.to), mpb.WithWidth(60), mpb.WithRefreshRate(200*time.Millisecond))
		p.bar = p.bars.AddBar(max(total, 1),
			mpb.PrependDecorators(decor.Name(p.name+" ")),
			mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f"), decor.Name(" "), decor.Percentage()),
			mpb.BarRemoveOnComplete())
	}
	p.bar.SetTotal(total, false)
	p.bar.SetCurrent(done)
}

// stop takes the bar away.
func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
	}
	p.to = nil
}
