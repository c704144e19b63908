package image

import (
	"context"
	"io"

	"brisk.dev/brisk/internal/store"
)

// chunkSink is what an Adder asks of a store.Batch: Add copies what it keeps, and
// makes a hole of zeros.
type chunkSink interface {
	Add(data []byte) (store.Chunk, bool, error)
}

// Adder puts the contents of files into a batch, cut into chunks. It has one chunk in memory, and belongs to one
// goroutine. It hashes in that goroutine, which is several times faster than any
// decompressor that feeds it; the batch compresses on all cores. So chunks come into
// packs in the order of the files, and equal imports make equal packs.
type Adder struct {
	sink chunkSink
	buf  []byte
}

// NewAdder makes an Adder for a batch.
func NewAdder(batch *store.Batch) *Adder { return newAdder(batch) }

func newAdder(sink chunkSink) *Adder {
	return &Adder{sink: sink, buf: make([]byte, store.ChunkSize)}
}

// Add reads exactly size bytes from r and makes them the content of n: its Size
// and its Chunks. A short r is io.ErrUnexpectedEOF.
func (a *Adder) Add(ctx context.Context, n *Node, r io.Reader, size int64) error {
	n.Size, n.Chunks = size, nil
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		data := a.buf[:min(size, store.ChunkSize)]
		if _, err := io.ReadFull(r, data); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		c, _, err := a.sink.Add(data)
		if err != nil {
			return err
		}
		size -= int64(len(data))
		n.Chunks = append(n.Chunks, c)
	}
	return nil
}
