package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// capSysAdmin is the number of the capability that mounts and namespaces need.
const capSysAdmin = 21

func (m *machine) root(context.Context, Options) Result {
	const name = "root"
	if m.uid != 0 {
		return fail(name, "Run it as root (sudo).", "running as user %d", m.uid)
	}
	for line := range strings.Lines(m.read("proc/self/status")) {
		value, found := strings.CutPrefix(line, "CapEff:")
		if !found {
			continue
		}
		caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err == nil && caps&(1<<capSysAdmin) == 0 {
			return fail(name, "Give the container its capabilities (docker run --privileged), or run on the machine itself.",
				"root without CAP_SYS_ADMIN, as in an unprivileged container")
		}
	}
	return ok(name, "with the capabilities it needs")
}

func (m *machine) architecture(context.Context, Options) Result {
	if m.arch != "amd64" {
		return fail("architecture", "Use an x86-64 machine: snapshots of Python do not survive a restore on others yet.", "%s", m.arch)
	}
	return ok("architecture", "x86-64")
}

// version is a kernel's, as two numbers: 6.12 is {6, 12}.
type version [2]int

var (
	oldest       = version{5, 16} // EROFS with its data on another device
	resends      = version{6, 9}  // FUSE repeats unanswered requests to the next server
	mountsByFile = version{6, 12} // EROFS mounts a file without a loop device
)

func (v version) before(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

// kernelVersion reads "6.1.0-18-amd64" as 6.1, and anything odd as 0.0.
func (m *machine) kernelVersion() (v version, release string) {
	release = m.read("proc/sys/kernel/osrelease")
	// Sscanf stops at the first character that does not fit: the rest is the distribution's.
	_, _ = fmt.Sscanf(release, "%d.%d", &v[0], &v[1])
	return v, release
}

func (m *machine) kernel(context.Context, Options) Result {
	const name = "kernel"
	v, release := m.kernelVersion()
	switch {
	case v.before(oldest):
		return fail(name, "Boot 5.16 or newer, as in Debian 12 and Ubuntu 24.04; on Ubuntu 22.04: apt-get install linux-generic-hwe-22.04.", "%s is too old", release)
	case v.before(resends):
		return warn(name, "Nothing has to be done; 6.12 or newer has neither limit.",
			"%s: before 6.9 an instance is replaced when the server dies under it, and before 6.12 images are mounted through loop devices", release)
	case v.before(mountsByFile):
		return warn(name, "Nothing has to be done; 6.12 or newer has no such limit.",
			"%s: before 6.12 images are mounted through loop devices", release)
	}
	return ok(name, "%s", release)
}

// hasFilesystem reports whether the kernel has it, after trying its module.
func (m *machine) hasFilesystem(ctx context.Context, fs string) bool {
	has := func() bool { return slices.Contains(strings.Fields(m.read("proc/filesystems")), fs) }
	if has() {
		return true
	}
	// Without modprobe, or without the module, the answer is simply no.
	_, _ = m.command(ctx, "modprobe", "-q", fs)
	return has()
}

func (m *machine) erofs(ctx context.Context, _ Options) Result {
	if !m.hasFilesystem(ctx, "erofs") {
		return fail("EROFS", "Boot a kernel with CONFIG_EROFS_FS; on Ubuntu: apt-get install linux-modules-extra-$(uname -r).",
			"the kernel has no such filesystem, and no module for it")
	}
	return ok("EROFS", "in the kernel")
}

func (m *machine) fuse(ctx context.Context, _ Options) Result {
	const name = "FUSE"
	if !m.hasFilesystem(ctx, "fuse") {
		return fail(name, "Boot a kernel with CONFIG_FUSE_FS.", "the kernel has no such filesystem, and no module for it")
	}
	if !m.writable("dev/fuse") {
		return fail(name, "In a container, pass the device in (--device /dev/fuse); else: modprobe fuse.", "/dev/fuse is not there or cannot be opened")
	}
	return ok(name, "/dev/fuse")
}

func (m *machine) loop(ctx context.Context, _ Options) Result {
	const name = "loop devices"
	v, _ := m.kernelVersion()
	if !v.before(mountsByFile) {
		return ok(name, "not needed by this kernel")
	}
	if !m.exists("dev/loop-control") {
		_, _ = m.command(ctx, "modprobe", "-q", "loop")
	}
	if !m.writable("dev/loop-control") {
		return fail(name, "modprobe loop; in a container, pass /dev/loop-control and the loop devices in.",
			"/dev/loop-control is not there or cannot be opened, and this kernel mounts images through it")
	}
	return ok(name, "/dev/loop-control")
}

func (m *machine) userNamespaces(context.Context, Options) Result {
	const name = "user namespaces"
	if m.read("proc/sys/user/max_user_namespaces") == "0" {
		return fail(name, "sysctl user.max_user_namespaces=10000 (and the same in /etc/sysctl.d to keep it).",
			"user.max_user_namespaces is 0, and sandboxes run in one")
	}
	if !m.exists("proc/self/ns/user") {
		return fail(name, "Boot a kernel with CONFIG_USER_NS.", "the kernel has none, and sandboxes run in one")
	}
	return ok(name, "allowed")
}

func (m *machine) kvm(context.Context, Options) Result {
	if !m.exists("dev/kvm") {
		return ok("KVM", "not here; only sandboxes that are virtual machines would use it")
	}
	return ok("KVM", "/dev/kvm is here; only sandboxes that are virtual machines would use it")
}
