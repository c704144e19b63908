package gvisor

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/sandbox/cgroup"
)

// capabilities are those of a container of Docker's, without raw sockets.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

const (
	// openFiles is RLIMIT_NOFILE inside.
	openFiles = 1 << 16
	// hostTasks is what a sandbox needs of the host's tasks besides one for each
	// process and thread inside: the sentry's and gofer's threads, and the threads
	// that systrap keeps for each address space.
	hostTasks = 512
)

// bundle turns a spec into OCI's. root is the directory to run on.
func (r *Runtime) bundle(s sandbox.Spec, root string) *specs.Spec {
	effective := capabilities
	if s.UID != 0 {
		effective = nil // as execve would do it
	}
	limits := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: openFiles, Soft: openFiles}}
	if s.Limits.Pids > 0 {
		n := uint64(s.Limits.Pids)
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Hard: n, Soft: n})
	}
	o := &specs.Spec{
		Version:  "1.1.0",
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: root},
		Process: &specs.Process{
			Args: s.Args, Env: s.Env, Cwd: s.Cwd,
			User: specs.User{UID: s.UID, GID: s.GID, AdditionalGids: s.Groups},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Permitted: effective, Effective: effective,
			},
			Rlimits:         limits,
			NoNewPrivileges: true,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777", "nosuid", "nodev"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: r.group(s.ID).Path(),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
				{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace, Path: s.Netns},
			},
			Resources: r.resources(s.Limits),
		},
	}
	for _, m := range s.Mounts {
		options := []string{"rbind"}
		if m.ReadOnly {
			options = append(options, "ro")
		}
		o.Mounts = append(o.Mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: options})
	}
	return o
}

// resources are the limits as control groups have them.
func (r *Runtime) resources(l sandbox.Limits) *specs.LinuxResources {
	res := &specs.LinuxResources{}
	if l.CPU > 0 {
		quota, period := cpuQuota(l), uint64(cgroup.CPUPeriod)
		res.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if l.Memory > 0 {
		res.Memory = &specs.LinuxMemory{Limit: &l.Memory}
		if r.swapLimit {
			res.Memory.Swap = &l.Memory // memory and swap together: no swap
		}
		if r.cgroups.Unified() {
			// The sandbox lives or dies as a whole.
			res.Unified = map[string]string{"memory.oom.group": "1"}
		}
	}
	if l.Pids > 0 {
		n := 2*l.Pids + hostTasks
		res.Pids = &specs.LinuxPids{Limit: &n}
	}
	return res
}

// cpuQuota is a limit in microseconds per cgroup.CPUPeriod, at least the kernel's minimum.
func cpuQuota(l sandbox.Limits) int64 {
	return max(int64(math.Ceil(l.CPU*cgroup.CPUPeriod)), 1000)
}

// writeBundle makes the bundle's directory with its config.json.
func writeBundle(dir string, o *specs.Spec) error {
	b, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600)
	}
	return fault.Wrap(err, "write", "bundle")
}
