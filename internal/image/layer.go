package image

import (
	"context"
	"errors"
	"io"
	"path"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// ApplyTar applies a tar to the tree, as ReadTar reads it: its files are added and
// replace others of their names, its whiteouts remove what was there before.
// Errors are those of ReadTar and of Layer.Apply. After one the tree is half-way:
// throw it away.
func (t *Tree) ApplyTar(ctx context.Context, r io.Reader, batch *store.Batch, opt LayerOptions) (LayerStats, error) {
	return t.applyTar(ctx, r, batch, opt)
}

func (t *Tree) applyTar(ctx context.Context, r io.Reader, sink chunkSink, opt LayerOptions) (LayerStats, error) {
	return readTar(ctx, r, sink, opt, t.NewLayer().apply)
}

// Layer is a layer on its way into a tree.
type Layer struct {
	tree  *Tree
	fresh map[*Node]struct{} // nodes of this layer: whiteouts do not touch them
}

// NewLayer begins a layer on top of what the tree has now.
func (t *Tree) NewLayer() *Layer { return &Layer{tree: t, fresh: map[*Node]struct{}{}} }

// Apply does what an entry says. The tree takes e.Node over, and shares the rest.
//
// Paths are taken from the root of the tree; symbolic links in the middle of one
// lead to places in the tree, as they would in a chroot. An entry below a file
// that is no directory, and a hard link to what is not there, are errors of class
// fault.Invalid that name it. After an error the tree is half-way: throw it away.
func (l *Layer) Apply(e *LayerEntry) error {
	if err := l.apply(e); err != nil {
		return readError(err, e.Path)
	}
	return nil
}

func (l *Layer) apply(e *LayerEntry) error {
	if e.Action == Remove || e.Action == Clear {
		return l.whiteout(e)
	}
	n := e.Node
	if e.Path == "." {
		if n == nil || !n.IsDir() {
			return fault.New(fault.Invalid, "the root must be a directory")
		}
		l.putDir(l.tree.Root, n, e.Opaque)
		return nil
	}
	dir, err := l.parent(e.Path, true)
	if err != nil {
		return err
	}
	base := path.Base(e.Path)
	if e.Action == HardLink {
		return l.link(dir, base, e.Link)
	}
	n.Name = base
	if old := dir.Children[base]; n.IsDir() && old != nil && old.IsDir() {
		l.putDir(old, n, e.Opaque)
		return nil
	}
	if n.IsDir() && n.Children == nil {
		n.Children = map[string]*Node{}
	}
	l.put(dir, n)
	return nil
}

// parent finds the directory that a clean path's last component is in.
func (l *Layer) parent(clean string, create bool) (*Node, error) {
	dir, _ := path.Split(clean)
	r := resolver{tree: l.tree, create: create, made: func(n *Node) { l.fresh[n] = struct{}{} }}
	at, err := r.walkFrom(&place{node: l.tree.Root}, dir, true)
	if err != nil {
		return nil, err
	}
	if !at.node.IsDir() {
		return nil, fault.New(fault.Invalid, "it is below a file that is not a directory")
	}
	return at.node, nil
}

func (l *Layer) put(dir, n *Node) {
	delete(l.fresh, dir.Children[n.Name]) // if it is of this layer, the last one wins
	dir.Put(n)
	l.fresh[n] = struct{}{}
}

// putDir gives directory old the attributes of n and keeps what is in it.
func (l *Layer) putDir(old, n *Node, opaque bool) {
	n.Name, n.Children = old.Name, old.Children
	*old = *n
	l.fresh[old] = struct{}{}
	if opaque {
		l.clear(old)
	}
}

// link makes a further name of a file.
func (l *Layer) link(dir *Node, base, to string) error {
	missing := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "hard link to %s: "+format, append([]any{quote(to)}, args...)...)
	}
	from, err := l.parent(to, false)
	if err != nil {
		return missing("%w", errors.New("there is no such file"))
	}
	old := from.Children[path.Base(to)]
	switch {
	case old == nil:
		return missing("there is no such file")
	case old.IsDir():
		return missing("it is a directory")
	}
	file := old.File()
	if now := dir.Children[base]; now != nil && now.File() == file {
		l.fresh[now] = struct{}{} // it is that file already
		return nil
	}
	l.put(dir, &Node{Name: base, Target: file})
	return nil
}

// whiteout removes what lower layers have under a path or, to clear a directory, in
// it. That nothing is there is no error.
func (l *Layer) whiteout(e *LayerEntry) error {
	at := e.Path
	if e.Action == Clear {
		at = path.Join(at, "x") // whose parent it is
	}
	dir, err := l.parent(at, false)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	case e.Action == Clear:
		l.clear(dir)
		return nil
	}
	gone := path.Base(e.Path)
	if dir.Children[gone] != nil && !l.keep(dir.Children[gone]) {
		delete(dir.Children, gone)
	}
	return nil
}

// clear removes everything from dir that is not of this layer.
func (l *Layer) clear(dir *Node) {
	for name, c := range dir.Children {
		if !l.keep(c) {
			delete(dir.Children, name)
		}
	}
}

// keep clears n of what is not of this layer and reports whether anything is left.
func (l *Layer) keep(n *Node) bool {
	_, fresh := l.fresh[n]
	if n.IsDir() {
		l.clear(n)
		fresh = fresh || len(n.Children) > 0
	}
	return fresh
}
