package image

import (
	"brisk.dev/brisk/internal/store"
)

// Node is one file of any kind in a Tree. Fields that do not apply to its kind
// are zero.
type Node struct {
	Name    string            // one path component, any bytes but NUL and '/'; "" for the root
	Mode    uint32            // S_IFMT bits and the 12 permission bits, as in stat(2)
	UID     uint32            //
	GID     uint32            //
	MtimeS  int64             // seconds since 1970
	MtimeNS uint32            // and nanoseconds
	Size    int64             // bytes, of a regular file
	Major   uint32            // of a device
	Minor   uint32            //
	Link    string            // target of a symbolic link
	Xattrs  map[string]string // full names ("security.capability") to raw values
	Chunks  []store.Chunk     // of a regular file: every ChunkSize bytes one, the last shorter; zero digest = hole

	Children map[string]*Node // of a directory
	Target   *Node            // of a further name of a hard-linked file: its first name's node; all else but Name is ignored
}

// Tree is a whole root filesystem in memory: about 300 bytes a file.
type Tree struct {
	Root *Node
}

// Config is what of an OCI image configuration Brisk uses.
type Config struct {
	Env        []string          `json:"env,omitempty"` // NAME=VALUE
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"` // name or uid, optionally :group or :gid
	Labels     map[string]string `json:"labels,omitempty"`
}

// Ref names an image in a workspace: by name ("web"), or by the digest's
// hexadecimal digits (all, or at least 8 of them).
type Ref struct {
	Workspace string
	Name      string
}

// DefaultWorkspace is the only workspace there is until identities come.
const DefaultWorkspace = "default"
