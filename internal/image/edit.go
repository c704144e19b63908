package image

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Limits of paths, as Linux has them.
const (
	maxPath  = 4096 // bytes in a path
	maxName  = 255  // bytes in a component
	maxLinks = 40   // symbolic links followed in one look-up
)

// NewTree makes a tree of nothing but a root directory, 0755 and root's.
func NewTree() *Tree { return &Tree{Root: NewDir("")} }

// NewDir makes an empty directory, 0755 and root's.
func NewDir(name string) *Node {
	return &Node{Name: name, Mode: unix.S_IFDIR | 0o755, Children: map[string]*Node{}}
}

// IsDir reports a directory. A further name of a hard-linked file is of no kind,
// here and below: ask its File.
func (n *Node) IsDir() bool { return n.Target == nil && n.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular reports a regular file.
func (n *Node) IsRegular() bool { return n.Target == nil && n.Mode&unix.S_IFMT == unix.S_IFREG }

// IsSymlink reports a symbolic link.
func (n *Node) IsSymlink() bool { return n.Target == nil && n.Mode&unix.S_IFMT == unix.S_IFLNK }

// File is the node that has the attributes: Target for a further name of a
// hard-linked file, else n.
func (n *Node) File() *Node {
	for n.Target != nil {
		n = n.Target
	}
	return n
}

// Put makes c a child of directory n, in place of whatever had its name.
func (n *Node) Put(c *Node) {
	if n.Children == nil {
		n.Children = map[string]*Node{}
	}
	n.Children[c.Name] = c
}

// Sorted lists a directory's children in the order of their names' bytes.
func (n *Node) Sorted() []*Node {
	l := slices.Collect(maps.Values(n.Children))
	slices.SortFunc(l, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	return l
}

// Clone copies the tree. Xattrs and Chunks are shared between the copies: replace
// them in a node, never change them in place.
func (t *Tree) Clone() *Tree {
	copies := map[*Node]*Node{} // of targets only
	var clone, target func(n *Node) *Node
	clone = func(n *Node) *Node {
		c, known := copies[n]
		if !known {
			c = &Node{}
			*c = *n
		}
		if n.Target != nil {
			c.Target = target(n.File())
			return c
		}
		if n.Children != nil && !known {
			c.Children = make(map[string]*Node, len(n.Children))
			for name, child := range n.Children {
				c.Children[name] = clone(child)
			}
		}
		return c
	}
	target = func(n *Node) *Node {
		c, known := copies[n]
		if !known {
			c = &Node{}
			*c = *n
			copies[n] = c
		}
		return c
	}
	// First the targets, so that a first name met later finds its copy.
	eachLink(t.Root, func(file *Node) { target(file) })
	return &Tree{Root: clone(t.Root)}
}

// eachLink calls fn with the file of each further name below dir, in no order.
func eachLink(dir *Node, fn func(file *Node)) {
	for _, n := range dir.Children {
		if n.Target != nil {
			fn(n.File())
		} else {
			eachLink(n, fn)
		}
	}
}

// Walk calls fn for every node, parents first and siblings in the order of their
// names, until it fails. Paths begin with a slash; the root's is "/".
func (t *Tree) Walk(fn func(path string, n *Node) error) error {
	if err := fn("/", t.Root); err != nil {
		return err
	}
	return walkChildren("", t.Root, fn)
}

func walkChildren(path string, dir *Node, fn func(path string, n *Node) error) error {
	for _, n := range dir.Sorted() {
		p := path + "/" + n.Name
		if err := fn(p, n); err != nil {
			return err
		}
		if n.IsDir() {
			if err := walkChildren(p, n, fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// Lookup finds the node at a path, which is taken from the root whether or not it
// begins with a slash. Symbolic links on the way are followed inside the tree,
// one at the end is not, and ".." never leads above the root. A further name of
// a hard-linked file is returned as its File.
func (t *Tree) Lookup(path string) (*Node, error) {
	r := resolver{tree: t}
	at, err := r.walk(path, false)
	if err != nil {
		return nil, err
	}
	return at.node.File(), nil
}

// Follow is Lookup that follows a symbolic link at the end too.
func (t *Tree) Follow(path string) (*Node, error) {
	r := resolver{tree: t}
	at, err := r.walk(path, true)
	if err != nil {
		return nil, err
	}
	return at.node.File(), nil
}

// place is a node with the directories above it, which ".." needs.
type place struct {
	node *Node
	up   *place
}

// resolver walks paths. With create it makes directories that are missing on the
// way; made learns of each.
type resolver struct {
	tree   *Tree
	create bool
	made   func(*Node)
	links  int
}

// walk resolves path from the root.
func (r *resolver) walk(path string, follow bool) (*place, error) {
	at, err := r.walkFrom(&place{node: r.tree.Root}, path, follow)
	if err != nil {
		return nil, fault.Wrap(err, "look up", quote(path))
	}
	return at, nil
}

func (r *resolver) walkFrom(at *place, path string, follow bool) (*place, error) {
	for path != "" {
		var name string
		name, path, _ = strings.Cut(path, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			if at.up != nil {
				at = at.up
			}
			continue
		}
		if !at.node.IsDir() {
			return nil, fault.New(fault.Invalid, "%s is below a file that is not a directory", quote(name))
		}
		child := at.node.Children[name]
		if child == nil {
			if !r.create {
				return nil, fault.New(fault.NotFound, "no such file in the image")
			}
			child = NewDir(name)
			at.node.Put(child)
			r.made(child)
		}
		last := strings.Trim(path, "/") == ""
		if file := child.File(); file.IsSymlink() && (!last || follow) {
			if r.links++; r.links > maxLinks {
				return nil, fault.New(fault.Invalid, "more than %d symbolic links on the way: a loop", maxLinks)
			}
			from := at
			if strings.HasPrefix(file.Link, "/") {
				from = &place{node: r.tree.Root}
			}
			next, err := r.walkFrom(from, file.Link, true)
			if err != nil {
				return nil, err
			}
			at = next
			continue
		}
		at = &place{node: child, up: at}
	}
	return at, nil
}
