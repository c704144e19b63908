package seal

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Keyring is a directory with the secrets of workspaces, a file each: W.key, mode
// 0600. Several processes may use one at a time.
type Keyring struct {
	dir string

	mu   sync.Mutex
	keys map[string]*Keys
}

// The line that a key file holds, and that Export gives: magic, version,
// workspace, secret, and the beginning of the digest of all that, against typing errors.
const (
	keyMagic   = "brisk-key"
	keyVersion = "1"
	keySuffix  = ".key"
	tempPrefix = ".new-"
)

var workspaceForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// CheckWorkspace says why something cannot be the name of a workspace, or nil:
// names are 1 to 63 small letters, digits and hyphens, and do not begin with a hyphen.
func CheckWorkspace(name string) error {
	if !workspaceForm.MatchString(name) {
		return fault.New(fault.Invalid, "%q cannot be a workspace's name", name).
			WithHint("Names of workspaces are up to 63 small letters, digits and hyphens.")
	}
	return nil
}

// OpenKeyring opens the keyring in a directory, which it makes, closed to others,
// if there is none.
func OpenKeyring(dir string) (*Keyring, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "open keyring", dir)
	}
	left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	if err != nil {
		return nil, fault.Wrap(err, "open keyring", dir)
	}
	for _, path := range left {
		if f, err := os.Open(path); err == nil {
			if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil { // its writer is gone
				os.Remove(path)
			}
			f.Close()
		}
	}
	return &Keyring{dir: dir, keys: map[string]*Keys{}}, nil
}

// Keys gives a workspace's keys, and makes its secret if there is none: that is
// durable before it is used for the first time.
func (r *Keyring) Keys(workspace string) (*Keys, error) {
	k, err := r.Find(workspace)
	if !fault.Is(err, fault.NotFound) {
		return k, err
	}
	var secret [32]byte
	rand.Read(secret[:]) // does not fail
	if err := r.write(workspace, secret); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fault.Wrap(err, "make the key of workspace", workspace)
	}
	return r.Find(workspace) // what is there now, whoever wrote it
}

// Find gives the keys of a workspace that has a secret; fault.NotFound otherwise.
func (r *Keyring) Find(workspace string) (*Keys, error) {
	if err := CheckWorkspace(workspace); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.keys[workspace]; k != nil {
		return k, nil
	}
	secret, err := r.read(workspace)
	if err != nil {
		return nil, err
	}
	k := newKeys(workspace, secret)
	r.keys[workspace] = k
	return k, nil
}

func (r *Keyring) path(workspace string) string { return filepath.Join(r.dir, workspace+keySuffix) }

func (r *Keyring) read(workspace string) (secret [32]byte, err error) {
	path := r.path(workspace)
	st, err := os.Stat(path)
	if err != nil {
		return secret, fault.Wrap(err, "read the key of workspace", workspace)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return secret, fault.New(fault.Machine, "others than its owner may read or write %s", path).
			WithHint("Find out who could have read it; then: chmod 600 %s", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return secret, fault.Wrap(err, "read the key of workspace", workspace)
	}
	of, secret, err := parseKey(string(b))
	if err == nil && of != workspace {
		err = fault.New(fault.Corrupt, "%s has the key of workspace %q", path, of)
	}
	if err != nil {
		return secret, (&fault.Error{Class: fault.Corrupt, Op: "read the key of workspace", Object: workspace, Err: err}).
			WithHint("Put the file %s back from your backup: without it, nothing that the workspace has sealed can be read.", path)
	}
	return secret, nil
}

// write makes the file of a workspace that has none, durably: fs.ErrExist if there is one.
func (r *Keyring) write(workspace string, secret [32]byte) error {
	f, err := r.temp()
	if err != nil {
		return err
	}
	defer f.Close()
	defer os.Remove(f.Name())
	_, err = f.WriteString(formatKey(workspace, secret))
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Link(f.Name(), r.path(workspace)) // never over another
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Also if it is there: its maker may have died before this.
	d, openErr := os.Open(r.dir)
	if openErr != nil {
		return openErr
	}
	defer d.Close()
	return errors.Join(err, d.Sync())
}

// temp makes a file with a lock, which OpenKeyring spares. Until it has its lock, another
// process that opens the keyring takes it for a dead writer's; then there is another.
func (r *Keyring) temp() (*os.File, error) {
	for {
		f, err := os.CreateTemp(r.dir, tempPrefix+"*") // mode 0600
		if err != nil {
			return nil, err
		}
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			if _, err = os.Lstat(f.Name()); err == nil {
				return f, nil
			}
		}
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, fs.ErrNotExist) {
			os.Remove(f.Name())
			return nil, err
		}
	}
}

// Export gives a workspace's key as a line of text, for a backup or another machine.
// Whoever has it can read all that the workspace has stored.
func (r *Keyring) Export(workspace string) (string, error) {
	if err := CheckWorkspace(workspace); err != nil {
		return "", err
	}
	secret, err := r.read(workspace)
	if err != nil {
		return "", err
	}
	return formatKey(workspace, secret), nil
}

// Import puts a key that Export gave into the keyring, durably, and says whose it
// is. Another key for the same workspace stays, and is fault.Exists; the same one
// is no error.
func (r *Keyring) Import(line string) (workspace string, err error) {
	workspace, secret, err := parseKey(line)
	if err != nil {
		return "", (&fault.Error{Class: fault.Invalid, Op: "import key", Err: err}).
			WithHint("A key is one line that begins with %q, as `brisk store key export` prints it.", keyMagic)
	}
	err = r.write(workspace, secret)
	if !errors.Is(err, fs.ErrExist) {
		return workspace, fault.Wrap(err, "import key of workspace", workspace)
	}
	have, err := r.read(workspace)
	if err != nil {
		return workspace, err
	}
	if have != secret {
		return workspace, fault.New(fault.Exists, "workspace %q has another key here: %s, not %s",
			workspace, newKeys(workspace, have).id, newKeys(workspace, secret).id).
			WithHint("What it has sealed with that key can be read with that key only. If nothing needs it any more, move %s away and try again.", r.path(workspace))
	}
	return workspace, nil
}

// Workspaces lists those with a key here, sorted.
func (r *Keyring) Workspaces() ([]string, error) {
	files, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, fault.Wrap(err, "list keys", r.dir)
	}
	var l []string
	for _, f := range files {
		if w, ok := strings.CutSuffix(f.Name(), keySuffix); ok && CheckWorkspace(w) == nil {
			l = append(l, w)
		}
	}
	return l, nil
}

func formatKey(workspace string, secret [32]byte) string {
	line := strings.Join([]string{keyMagic, keyVersion, workspace, hex.EncodeToString(secret[:])}, " ")
	return fmt.Sprintf("%s %s\n", line, checkOf(line))
}

func checkOf(line string) string {
	sum := blake3.Sum256([]byte(line))
	return hex.EncodeToString(sum[:8])
}

// parseKey reads what formatKey writes; white space around it does not count.
func parseKey(text string) (workspace string, secret [32]byte, err error) {
	line := strings.TrimSpace(text)
	fields := strings.Fields(line)
	switch {
	case len(fields) < 2 || fields[0] != keyMagic:
		return "", secret, fault.New(fault.Corrupt, "it is not a key")
	case fields[1] != keyVersion:
		return "", secret, fault.New(fault.Corrupt, "it is a key of version %s: this Brisk knows %s", fields[1], keyVersion)
	case len(fields) != 5 || CheckWorkspace(fields[2]) != nil || len(fields[3]) != 64:
		return "", secret, fault.New(fault.Corrupt, "the key is cut off or damaged")
	}
	if _, err := hex.Decode(secret[:], []byte(fields[3])); err != nil || formatKey(fields[2], secret) != line+"\n" {
		return "", [32]byte{}, fault.New(fault.Corrupt, "the key is damaged: its check does not match")
	}
	return fields[2], secret, nil
}
