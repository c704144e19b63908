package doctor

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// controllers are what a sandbox's limits bind through.
var controllers = []string{"memory", "cpu", "pids"}

// cgroups looks for each controller in version 1 (a hierarchy of its own) or
// version 2 (one for all); a hybrid machine has some of each.
func (m *machine) cgroups(context.Context, Options) Result {
	const name = "cgroups"
	var unified string
	found := map[string]string{} // controller to where it is mounted
	for line := range strings.Lines(m.read("proc/self/mounts")) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		dir := f[1]
		switch f[2] {
		case "cgroup":
			for c := range strings.SplitSeq(f[3], ",") {
				if slices.Contains(controllers, c) {
					found[c] = dir
				}
			}
		case "cgroup2":
			unified = dir
		}
	}
	kind := "version 1"
	if len(found) == 0 {
		kind = "version 2"
	}
	if unified != "" {
		for c := range strings.FieldsSeq(m.read(filepath.Join(unified, "cgroup.controllers"))) {
			if slices.Contains(controllers, c) && found[c] == "" {
				found[c] = unified
			}
		}
	}
	var missing, readOnly []string
	for _, c := range controllers {
		switch dir := found[c]; {
		case dir == "":
			missing = append(missing, c)
		case !m.writable(dir):
			readOnly = append(readOnly, c)
		}
	}
	switch {
	case missing != nil:
		return fail(name, "Boot a kernel that has them, without cgroup_disable= on its command line; in a container, give it cgroups of its own (--privileged --cgroupns=host).",
			"no controller for %s", strings.Join(missing, ", "))
	case readOnly != nil:
		return fail(name, "In a container, run it with --privileged.", "the hierarchy of %s is read-only", strings.Join(readOnly, ", "))
	}
	return ok(name, "%s, with memory, cpu and pids", kind)
}

func (m *machine) memory(context.Context, Options) Result {
	const name = "memory"
	var total int64
	for line := range strings.Lines(m.read("proc/meminfo")) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64) // 0 is reported below
			total = kib << 10
		}
	}
	switch {
	case total < 512*mib:
		return fail(name, "Use a machine with 2 GiB or more.", "%s", size(total))
	case total < 2*gib:
		return warn(name, "Use a machine with 2 GiB or more for anything but small functions.", "%s", size(total))
	}
	return ok(name, "%s", size(total))
}

func (m *machine) dataDir(_ context.Context, o Options) Result {
	const name = "data directory"
	dir := m.existing(o.DataDir)
	left, err := m.free(m.path(dir))
	switch {
	case err != nil:
		return fail(name, "Name another with --data.", "%s: %v", o.DataDir, err)
	case !m.writable(dir):
		return fail(name, "Name another with --data.", "%s cannot be written", dir)
	case left < gib:
		return fail(name, "Make room (brisk image rm), or name a directory on a larger disk with --data.", "%s: %s free", o.DataDir, size(left))
	case left < 10*gib:
		return warn(name, "Make room, or name a directory on a larger disk with --data: images and snapshots take gigabytes.", "%s: %s free", o.DataDir, size(left))
	case m.isTmpfs(m.path(dir)):
		return warn(name, "Name a directory on a disk with --data.", "%s is in memory, and gone at the next boot", o.DataDir)
	}
	return ok(name, "%s: %s free", o.DataDir, size(left))
}

// storeTime bounds the look at a bucket.
const storeTime = 10 * time.Second

func (m *machine) store(ctx context.Context, o Options) Result {
	const name = "store"
	err := o.Store.Err
	if err == nil && o.Store.Try != nil {
		ctx, cancel := context.WithTimeout(ctx, storeTime)
		defer cancel()
		err = o.Store.Try(ctx)
	}
	switch {
	case err != nil:
		return fail(name, cmp.Or(fault.HintOf(err), "Look at the store, or name another with --store and --data."), "%s", oneLine(err))
	case o.Store.Place == "":
		return ok(name, "in the data directory")
	}
	return ok(name, "%s", o.Store.Place)
}

func (m *machine) runDir(_ context.Context, o Options) Result {
	const name = "run directory"
	if dir := m.existing(o.RunDir); !m.writable(dir) {
		return fail(name, "Mount a writable tmpfs on /run.", "%s cannot be written", dir)
	}
	return ok(name, "%s", o.RunDir)
}

func size(n int64) string {
	if n < gib {
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/float64(gib))
}
