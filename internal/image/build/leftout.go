package build

import (
	"slices"
	"strings"
)

// What a step leaves there is the sandbox's, the host's or a cache's, never part of an image.
var (
	leftOutBelow = []string{
		"/run", "/var/run", "/tmp", "/proc", "/sys", "/dev", // of the sandbox; the binds are below /run
		"/var/cache/apt", "/var/lib/apt/lists", "/root/.cache",
	}
	leftOutFiles = []string{"/etc/resolv.conf", "/etc/hosts", "/etc/hostname"}
)

// leftOut reports whether a path does not enter an image when a step is committed.
func leftOut(path string) bool {
	return slices.Contains(leftOutFiles, path) || isBelow(path, leftOutBelow)
}

// isBelow reports whether a path is inside one of the directories; they themselves are not.
func isBelow(path string, dirs []string) bool {
	for _, d := range dirs {
		if strings.HasPrefix(path, d) && len(path) > len(d) && path[len(d)] == '/' {
			return true
		}
	}
	return false
}
