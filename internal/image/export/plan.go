package export

import (
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// item is one member of a layer's tar.
type item struct {
	path string      // relative to the root; "." is the root
	node *image.Node // nil: a whiteout
	link string      // a further name of the file at that path
}

// tarred is one layer: its items in order.
type tarred struct {
	items []item
	bytes int64 // of content
}

// planned is the layers of an export.
type planned struct {
	layers  []*tarred
	bytes   int64
	leftOut []string
}

// planner cuts a tree into layers.
type planner struct {
	planned
	limit     int64
	whiteouts bool                   // names that look like one are refused
	dirs      map[string]*image.Node // of the tree by their paths
	names     map[*image.Node][]string
	there     map[string]bool // directories that the current layer has
	now       *tarred
}

// plan cuts what tree has beyond base, which may be nil, into layers.
func plan(base, tree *image.Tree, limit int64, whiteouts bool) (*planned, error) {
	p := &planner{limit: limit, whiteouts: whiteouts, dirs: map[string]*image.Node{}, names: linkNames(tree)}
	var below *comparison
	if base != nil {
		below = &comparison{names: linkNames(base), own: p.names}
	}
	if err := p.dir(".", tree.Root, below, rootOf(base)); err != nil {
		return nil, err
	}
	if len(p.layers) == 0 && base == nil { // a layer at least, since some tools want one
		p.layer()
	}
	return &p.planned, nil
}

func rootOf(t *image.Tree) *image.Node {
	if t == nil {
		return nil
	}
	return t.Root
}

// linkNames lists the names of every file that has several, in the order of a walk.
func linkNames(t *image.Tree) map[*image.Node][]string {
	names := map[*image.Node][]string{}
	var mark func(dir *image.Node)
	mark = func(dir *image.Node) {
		for _, c := range dir.Children {
			if c.Target != nil {
				names[c.File()] = nil
			} else if c.IsDir() {
				mark(c)
			}
		}
	}
	mark(t.Root)
	if len(names) == 0 {
		return names
	}
	_ = t.Walk(func(at string, n *image.Node) error {
		f := n.File()
		if l, several := names[f]; several {
			names[f] = append(l, relative(at))
		}
		return nil
	})
	return names
}

func relative(at string) string {
	if at == "/" {
		return "."
	}
	return at[1:]
}

// comparison tells whether files of two trees are the same.
type comparison struct{ names, own map[*image.Node][]string }

// same reports whether a, of the base, and b say the same of themselves, names included.
func (c *comparison) same(a, b *image.Node) bool {
	a, b = a.File(), b.File()
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.MtimeS == b.MtimeS && a.MtimeNS == b.MtimeNS &&
		a.Size == b.Size && a.Major == b.Major && a.Minor == b.Minor && a.Link == b.Link &&
		maps.Equal(a.Xattrs, b.Xattrs) && slices.Equal(a.Chunks, b.Chunks) && slices.Equal(c.names[a], c.own[b])
}

// dir plans a directory: itself, if it differs from old of the base, and what is in it.
func (p *planner) dir(at string, n *image.Node, below *comparison, old *image.Node) error {
	p.dirs[at] = n
	if old == nil || !below.same(old, n) {
		p.ensure(at)
	}
	if old != nil {
		for _, gone := range old.Sorted() {
			if n.Children[gone.Name] == nil {
				p.begin(0)
				p.ensure(at)
				p.now.items = append(p.now.items, item{path: path.Join(at, ".wh."+gone.Name)})
			}
		}
	}
	for _, c := range n.Sorted() {
		where := path.Join(at, c.Name)
		if p.whiteouts && strings.HasPrefix(c.Name, ".wh.") {
			return fault.New(fault.Invalid, "%q would be taken for a whiteout, and cannot be in a container image", where).
				WithHint("Export it as a tar (--format tar), or remove the file.")
		}
		var before *image.Node
		if old != nil {
			before = old.Children[c.Name]
		}
		if c.IsDir() {
			if before != nil && !before.IsDir() {
				before = nil
			}
			if err := p.dir(where, c, below, before); err != nil {
				return err
			}
			continue
		}
		if before != nil && below.same(before, c) {
			continue
		}
		if err := p.file(where, c); err != nil {
			return err
		}
	}
	return nil
}

// file plans a file with all of its names, when the first is met.
func (p *planner) file(at string, n *image.Node) error {
	f := n.File()
	if f.Mode&unix.S_IFMT == unix.S_IFSOCK {
		p.leftOut = append(p.leftOut, leftOutText("/"+at))
		return nil
	}
	names := p.names[f]
	if len(names) > 0 && names[0] != at {
		return nil // it came with the first
	}
	p.begin(f.Size)
	p.ensure(path.Dir(at))
	p.now.items = append(p.now.items, item{path: at, node: f})
	p.now.bytes += f.Size
	p.bytes += f.Size
	for _, further := range names[min(1, len(names)):] {
		p.ensure(path.Dir(further))
		p.now.items = append(p.now.items, item{path: further, node: f, link: at})
	}
	return nil
}

// begin makes room for a file of that size.
func (p *planner) begin(size int64) {
	if p.now == nil || p.now.bytes > 0 && p.now.bytes+size > p.limit {
		p.layer()
	}
}

func (p *planner) layer() {
	p.now = &tarred{}
	p.layers = append(p.layers, p.now)
	p.there = map[string]bool{}
}

// ensure puts a directory into the current layer, and those above it before. Directories further on
// in the walk, to which a hard link leads, are looked up when they are due.
func (p *planner) ensure(at string) {
	if p.now == nil {
		p.layer()
	}
	if p.there[at] {
		return
	}
	p.there[at] = true
	if at != "." {
		p.ensure(path.Dir(at))
	}
	p.now.items = append(p.now.items, item{path: at, node: p.lookup(at)})
}

// lookup finds a directory of the tree by a path without links in it.
func (p *planner) lookup(at string) *image.Node {
	if n := p.dirs[at]; n != nil {
		return n
	}
	n := p.lookup(path.Dir(at)).Children[path.Base(at)]
	p.dirs[at] = n
	return n
}
