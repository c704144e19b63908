package image

import (
	"context"
	"maps"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Change is a path at which two images differ.
type Change struct {
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	What []string   `json:"what,omitempty"` // of a changed file: kind, content, mode, owner, time, xattrs, device, link, names
	Size int64      `json:"size"`           // in bytes, of a regular file: in the second image, or in the first if it is removed
}

// ChangeKind is how.
type ChangeKind string

// The kinds of changes, from the first image to the second.
const (
	Added   ChangeKind = "added"
	Removed ChangeKind = "removed"
	Changed ChangeKind = "changed"
)

// Difference is what two images have and have not in common. Bytes count each
// chunk once, as the store keeps it.
type Difference struct {
	Changes     []Change `json:"changes"` // by path
	SharedBytes int64    `json:"shared_bytes"`
	OwnBytesA   int64    `json:"own_bytes_a"`
	OwnBytesB   int64    `json:"own_bytes_b"`
}

// Diff compares two images. It reads their metadata only.
func Diff(ctx context.Context, a, b *Image) (*Difference, error) {
	var trees [2]*Tree
	var chunks [2]map[store.Digest]int64
	for i, img := range []*Image{a, b} {
		var err error
		if trees[i], err = img.Tree(ctx); err != nil {
			return nil, err
		}
		blocks, err := img.Blocks(ctx)
		if err != nil {
			return nil, err
		}
		chunks[i] = map[store.Digest]int64{}
		for _, c := range blocks.Chunks() {
			chunks[i][c.Digest] = int64(c.Size)
		}
	}
	d := &Difference{Changes: []Change{}}
	for digest, size := range chunks[0] {
		if _, both := chunks[1][digest]; both {
			d.SharedBytes += size
		} else {
			d.OwnBytesA += size
		}
	}
	for digest, size := range chunks[1] {
		if _, both := chunks[0][digest]; !both {
			d.OwnBytesB += size
		}
	}
	c := comparing{names: [2]map[*Node][]string{firstNames(trees[0]), firstNames(trees[1])}}
	c.dir("/", trees[0].Root, trees[1].Root)
	d.Changes = append(d.Changes, c.changes...)
	return d, fault.Wrap(ctx.Err(), "compare", "images")
}

// firstNames lists all names of files that have several, in the order of a walk.
func firstNames(t *Tree) map[*Node][]string {
	names := map[*Node][]string{}
	_ = t.Walk(func(at string, n *Node) error {
		if n.Target != nil {
			names[n.Target] = nil
		}
		return nil
	})
	if len(names) > 0 {
		_ = t.Walk(func(at string, n *Node) error {
			if l, several := names[n.File()]; several {
				names[n.File()] = append(l, at)
			}
			return nil
		})
	}
	return names
}

// comparing is one comparison of two trees.
type comparing struct {
	names   [2]map[*Node][]string
	changes []Change
}

// dir compares a path at which both have a directory.
func (c *comparing) dir(at string, a, b *Node) {
	c.file(at, a, b)
	var names []string
	for n := range a.Children {
		names = append(names, n)
	}
	for n := range b.Children {
		if a.Children[n] == nil {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		where, x, y := path.Join(at, n), a.Children[n], b.Children[n]
		switch {
		case x == nil:
			c.whole(where, y, Added)
		case y == nil:
			c.whole(where, x, Removed)
		case x.IsDir() && y.IsDir():
			c.dir(where, x, y)
		default:
			c.file(where, x, y)
			below := func(n *Node, kind ChangeKind) {
				for _, child := range n.Sorted() {
					c.whole(path.Join(where, child.Name), child, kind)
				}
			}
			below(x, Removed)
			below(y, Added)
		}
	}
}

// whole lists a file, and all below it, that only one image has.
func (c *comparing) whole(at string, n *Node, kind ChangeKind) {
	c.changes = append(c.changes, Change{Path: at, Kind: kind, Size: n.File().Size})
	for _, child := range n.Sorted() {
		c.whole(path.Join(at, child.Name), child, kind)
	}
}

// file compares what two files at one path say of themselves.
func (c *comparing) file(at string, a, b *Node) {
	a, b = a.File(), b.File()
	var what []string
	note := func(differ bool, name string) {
		if differ {
			what = append(what, name)
		}
	}
	note(a.Mode&unix.S_IFMT != b.Mode&unix.S_IFMT, "kind")
	note(a.Size != b.Size || !slices.Equal(a.Chunks, b.Chunks), "content")
	note(a.Mode&^unix.S_IFMT != b.Mode&^unix.S_IFMT, "mode")
	note(a.UID != b.UID || a.GID != b.GID, "owner")
	note(a.MtimeS != b.MtimeS || a.MtimeNS != b.MtimeNS, "time")
	note(!maps.Equal(a.Xattrs, b.Xattrs), "xattrs")
	note(a.Major != b.Major || a.Minor != b.Minor, "device")
	note(a.Link != b.Link, "link")
	note(!slices.Equal(c.names[0][a], c.names[1][b]), "names")
	if what != nil {
		c.changes = append(c.changes, Change{Path: at, Kind: Changed, What: what, Size: b.Size})
	}
}
