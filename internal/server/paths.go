package server

import (
	"encoding/hex"
	"path/filepath"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/fault"
	sdk "brisk.dev/brisk/sdk/python"
)

// DefaultData is where state is kept unless --data says otherwise.
const DefaultData = "/var/lib/brisk"

// runRoot has a directory for each server of the machine; it does not survive a boot.
const runRoot = "/run/brisk"

// Paths are the two directories of a server.
type Paths struct {
	Data string // absolute; survives
	Run  string // does not survive a boot, nor an orderly end
}

// PathsOf finds the directories that belong to a data directory ("" = DefaultData).
func PathsOf(data string) (Paths, error) {
	if data == "" {
		data = DefaultData
	}
	data, err := filepath.Abs(data)
	if err != nil {
		return Paths{}, fault.Wrap(err, "find data directory", data)
	}
	name := "default"
	if data != DefaultData {
		sum := blake3.Sum256([]byte(data))
		name = hex.EncodeToString(sum[:6])
	}
	return Paths{Data: data, Run: filepath.Join(runRoot, name)}, nil
}

// Socket is where the server answers.
func (p Paths) Socket() string { return filepath.Join(p.Run, "api.sock") }

// LogFile is the server's own log.
func (p Paths) LogFile() string { return filepath.Join(p.Data, "log", "server.log") }

// outputFile takes the standard output and error of a server in the background:
// nothing, unless it crashes.
func (p Paths) outputFile() string { return filepath.Join(p.Data, "log", "output.log") }

func (p Paths) lockFile() string { return filepath.Join(p.Data, "lock") }

// SDKDir is where the Python package that is built into this binary is unpacked.
func SDKDir(p Paths) string { return filepath.Join(p.Data, "sdk", sdk.Digest().Short()) }
