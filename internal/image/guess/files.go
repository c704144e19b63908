package guess

import (
	"errors"
	"io"
	"path"
	"strings"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// lookup follows a path, and links in it, inside the image to a regular file. real
// is its path without links.
func (g *guesser) lookup(p string) (n *image.Node, real string, ok bool) {
	n, real, ok = g.follow(p)
	return n, real, ok && n.IsRegular()
}

// dir follows a path to a directory.
func (g *guesser) dir(p string) (n *image.Node, real string, ok bool) {
	n, real, ok = g.follow(p)
	return n, real, ok && n.IsDir()
}

func (g *guesser) follow(p string) (*image.Node, string, bool) {
	links := 40 // as the kernel
	return g.walk("/", p, &links)
}

func (g *guesser) walk(from, p string, links *int) (*image.Node, string, bool) {
	if path.IsAbs(p) {
		from = "/"
	}
	var stack []*image.Node // from the root to where we are
	var names []string
	stack = append(stack, g.root)
	todo := strings.Split(p, "/")
	if from != "/" {
		todo = append(strings.Split(from, "/"), todo...)
	}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(names) > 0 {
				stack, names = stack[:len(stack)-1], names[:len(names)-1]
			}
			continue
		}
		here := stack[len(stack)-1]
		child := here.Children[name]
		if child == nil {
			return nil, "", false
		}
		child = child.File()
		if child.IsSymlink() {
			if *links--; *links < 0 {
				return nil, "", false
			}
			if path.IsAbs(child.Link) {
				stack, names = stack[:1], names[:0]
			}
			todo = append(strings.Split(child.Link, "/"), todo...)
			continue
		}
		stack, names = append(stack, child), append(names, name)
	}
	return stack[len(stack)-1], "/" + strings.Join(names, "/"), true
}

// contents reads a file of the image, a chunk at a time.
type contents struct {
	g   *guesser
	n   *image.Node
	at  int // chunk in buf; -1: none
	buf []byte

	left int64 // bytes that may still be read
}

// mostRead bounds what is read of one file: its headers may say anything.
const mostRead = 64 << 20

func (g *guesser) open(n *image.Node) *contents { return &contents{g: g, n: n, at: -1, left: mostRead} }

var errMuch = errors.New("the file wants too much of itself to be read")

// ReadAt implements io.ReaderAt; it is for one goroutine.
func (c *contents) ReadAt(p []byte, off int64) (done int, err error) {
	if c.left -= int64(len(p)); c.left < 0 {
		return 0, errMuch
	}
	for done < len(p) {
		at := off + int64(done)
		if at < 0 || at >= c.n.Size {
			return done, io.EOF
		}
		if err := c.load(int(at / store.ChunkSize)); err != nil {
			return done, err
		}
		done += copy(p[done:], c.buf[at%store.ChunkSize:])
	}
	return done, nil
}

func (c *contents) load(i int) error {
	if c.at == i {
		return nil
	}
	if i >= len(c.n.Chunks) {
		return io.ErrUnexpectedEOF
	}
	chunk := c.n.Chunks[i]
	if cap(c.buf) == 0 {
		c.buf = make([]byte, store.ChunkSize)
	}
	c.at, c.buf = -1, c.buf[:chunk.Size]
	if _, err := c.g.read(c.g.ctx, chunk, c.buf); err != nil {
		return err
	}
	c.at = i
	return nil
}
