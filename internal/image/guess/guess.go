package guess

import (
	"bytes"
	"context"
	"path"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// Spec says what is being started.
type Spec struct {
	Args    []string // the program, by path or name, and its arguments
	Env     []string // NAME=VALUE; PATH and LD_LIBRARY_PATH count
	Workdir string
	Modules []string // Python modules that the program imports beside its own, such as "numpy.linalg"
	Limit   int64    // bytes of chunks to name at most; 0 is DefaultLimit
}

// DefaultLimit is what the largest of frameworks reads while it is imported. Nine
// tenths of what is named turn out to be read, so that naming much costs little.
const DefaultLimit = 256 << 20

// ReadChunk fills dst with a chunk's content.
type ReadChunk func(ctx context.Context, c store.Chunk, dst []byte) (store.Tier, error)

// Chunks names what the start is likely to read, roughly in the order in which it
// will: it hands some chunks at a time to emit, which must not wait.
func Chunks(ctx context.Context, t *image.Tree, read ReadChunk, s Spec, emit func([]store.Chunk)) error {
	if s.Limit <= 0 {
		s.Limit = DefaultLimit
	}
	g := &guesser{ctx: ctx, root: t.Root, read: read, spec: s, emit: emit, seen: map[store.Digest]bool{}, done: map[*image.Node]bool{}}
	if len(s.Args) == 0 {
		return fault.New(fault.Invalid, "nothing is being started")
	}
	err := g.program(s.Args)
	if err == errFull {
		err = nil
	}
	g.flush()
	return err
}

// some is how many chunks are handed on at once.
const some = 32

func (g *guesser) flush() {
	if len(g.list) > 0 {
		g.emit(g.list)
		g.list = nil
	}
}

// errFull ends a guess that has named as much as it may.
var errFull = fault.New(fault.Exhausted, "the guess is complete")

type guesser struct {
	ctx   context.Context
	root  *image.Node
	read  ReadChunk
	spec  Spec
	emit  func([]store.Chunk)
	list  []store.Chunk // not handed on yet
	bytes int64
	seen  map[store.Digest]bool
	done  map[*image.Node]bool // files that were looked at
	dirs  []string             // where the loader looks for libraries
}

// program names a program, and what it is run by.
func (g *guesser) program(args []string) error {
	const scripts = 4 // as many as the kernel follows
	name := args[0]
	for range scripts {
		n, real, ok := g.find(name)
		if !ok {
			return nil
		}
		head, err := g.head(n)
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(head, []byte("#!")) {
			return g.binary(n, real, args)
		}
		if err := g.whole(n); err != nil {
			return err
		}
		line, _, _ := bytes.Cut(head[2:], []byte("\n"))
		by := strings.Fields(string(line))
		if len(by) == 0 {
			return nil
		}
		if path.Base(by[0]) == "env" {
			if err := g.program(by[:1]); err != nil {
				return err
			}
			by = by[1:]
			for len(by) > 0 && (strings.HasPrefix(by[0], "-") || strings.Contains(by[0], "=")) {
				by = by[1:]
			}
			if len(by) == 0 {
				return nil
			}
		}
		args = append(by, append([]string{real}, args[1:]...)...)
		name = args[0]
	}
	return nil
}

// binary names a program that the kernel can load.
func (g *guesser) binary(n *image.Node, real string, args []string) error {
	for _, p := range []string{"/etc/ld.so.cache", "/etc/ld.so.preload"} {
		if err := g.file(p); err != nil {
			return err
		}
	}
	if err := g.elf(n, real); err != nil {
		return err
	}
	for _, p := range []string{
		"/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/locale.alias",
		"/usr/lib/locale/C.utf8/LC_CTYPE", "/usr/lib/locale/locale-archive",
	} {
		if err := g.file(p); err != nil {
			return err
		}
	}
	if isPython(real) {
		return g.python(real, args)
	}
	return nil
}

// find resolves a program's name as execvp does.
func (g *guesser) find(name string) (n *image.Node, real string, ok bool) {
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = path.Join("/", g.spec.Workdir, name)
		}
		return g.lookup(name)
	}
	for dir := range strings.SplitSeq(g.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ":") {
		if n, real, ok := g.lookup(path.Join("/", dir, name)); ok && n.Mode&0o111 != 0 {
			return n, real, true
		}
	}
	return nil, "", false
}

func (g *guesser) env(name, otherwise string) string {
	for _, kv := range g.spec.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return otherwise
}

// file names a whole file, if there is one.
func (g *guesser) file(p string) error {
	n, _, ok := g.lookup(p)
	if !ok {
		return nil
	}
	return g.whole(n)
}

// wholeFile is up to where a file is named whole: a larger one is hardly read so.
const wholeFile = 2 << 20

func (g *guesser) whole(n *image.Node) error { return g.part(n, 0, min(n.Size, wholeFile)) }

// part names the chunks of a file that have bytes from..to.
func (g *guesser) part(n *image.Node, from, to int64) error {
	for i := from / store.ChunkSize; i*store.ChunkSize < to && i < int64(len(n.Chunks)); i++ {
		c := n.Chunks[i]
		if c.Digest.IsZero() || g.seen[c.Digest] {
			continue
		}
		if g.bytes += int64(c.Size); g.bytes > g.spec.Limit {
			return errFull
		}
		g.seen[c.Digest] = true
		if g.list = append(g.list, c); len(g.list) == some {
			g.flush()
		}
	}
	return g.ctx.Err()
}

// head is the beginning of a file.
func (g *guesser) head(n *image.Node) ([]byte, error) {
	b := make([]byte, min(n.Size, 256))
	_, err := g.open(n).ReadAt(b, 0)
	return b, err
}
