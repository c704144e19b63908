package server

import (
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/lazyfs/mountns"
)

// EnterNamespace makes sure that the process lives in the mount namespace of
// Brisk: the one of a holder that outlived its server, else a new one. To get
// there it executes the program again, once: call it first.
func EnterNamespace(data string) error {
	p, err := PathsOf(data)
	if err != nil {
		return err
	}
	if pid, alive := lazyfs.HolderPID(p.Run); alive {
		return mountns.Join(pid)
	}
	return mountns.Enter()
}
