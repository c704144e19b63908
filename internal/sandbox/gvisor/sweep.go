package gvisor

import (
	"context"
	"errors"
	"os"
	"sort"
	"strings"
	"time"
)

// sweepTimeout is for one sandbox.
const sweepTimeout = destroyTimeout

// Sweep implements sandbox.Runtime. It finds sandboxes by their control groups,
// bundles, upper layers and state files, because a server may die between any two.
func (r *Runtime) Sweep(ctx context.Context) ([]string, error) {
	var swept []string
	var errs []error
	for _, id := range r.leftovers() {
		one, cancel := context.WithTimeout(ctx, sweepTimeout)
		start := time.Now()
		err := r.remove(one, id)
		cancel()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.options.Log.Info("swept sandbox", "id", id, "ms", time.Since(start).Milliseconds())
		swept = append(swept, id)
	}
	return swept, errors.Join(errs...)
}

// leftovers are the IDs of which something exists and that are not ours.
func (r *Runtime) leftovers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	set := map[string]bool{}
	add := func(id string) {
		if _, ours := r.mu.live[id]; !ours && validID.MatchString(id) {
			set[id] = true
		}
	}
	for _, id := range r.cgroups.Group(r.options.CgroupParent).Children() {
		add(id)
	}
	for _, dir := range []string{r.bundlesDir(), r.options.Scratch} {
		for _, id := range names(dir) {
			add(id)
		}
	}
	for _, n := range names(r.stateDir()) {
		if id, _, ok := strings.Cut(n, "_sandbox:"); ok {
			add(id)
		} else if id, ok := strings.CutPrefix(strings.TrimSuffix(n, ".sock"), "runsc-"); ok {
			add(id)
		}
	}
	ids := make([]string, 0, len(set))
	for id := range set {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	l := make([]string, len(entries))
	for i, e := range entries {
		l[i] = e.Name()
	}
	return l
}
