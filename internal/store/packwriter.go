package store

import (
	"bufio"
	"os"

	"github.com/zeebo/blake3"
)

// packWriter writes one pack to a file, and its digest on the way.
type packWriter struct {
	file  *os.File
	out   *bufio.Writer
	hash  *blake3.Hasher
	off   int64
	index packIndex
}

// sealedPack is a complete pack in a local file.
type sealedPack struct {
	digest Digest
	size   int64
	index  packIndex
	path   string
}

func newPackWriter(dir string) (*packWriter, error) {
	f, err := os.CreateTemp(dir, "pack-*")
	if err != nil {
		return nil, err
	}
	w := &packWriter{file: f, out: bufio.NewWriterSize(f, 1<<20), hash: blake3.New()}
	return w, w.write(encodePackHeader())
}

func (w *packWriter) write(b []byte) error {
	w.hash.Write(b)
	n, err := w.out.Write(b)
	w.off += int64(n)
	return err
}

// add appends a frame.
func (w *packWriter) add(d Digest, size uint32, frame []byte, raw bool) error {
	e := entry{digest: d, offset: uint32(w.off), stored: uint32(len(frame)), size: size, raw: raw}
	w.index = w.index.append(e)
	return w.write(frame)
}

func (w *packWriter) full() bool { return w.off >= packTarget || w.index.len() >= packFull }

// seal completes the file, but for syncing it.
func (w *packWriter) seal() (sealedPack, error) {
	off := w.off
	if err := w.write(w.index); err != nil {
		return sealedPack{}, err
	}
	if err := w.write(encodePackFooter(w.index, off)); err != nil {
		return sealedPack{}, err
	}
	p := sealedPack{size: w.off, index: w.index, path: w.file.Name()}
	w.hash.Sum(p.digest[:0])
	return p, w.out.Flush()
}
