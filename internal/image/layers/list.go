package layers

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// The format, version 1: docs/format/layer.md.
const (
	magic   = "BRSKLAYR"
	version = 1
	header  = 16 // bytes: magic, u32 version, u32 zero
	trailer = 32 // bytes: BLAKE3 of all before
)

// Writer writes a list. It ends with Finish or Close.
type Writer struct {
	file *os.File
	out  *bufio.Writer
	hash *blake3.Hasher
	zstd *zstd.Encoder
	buf  []byte
}

func newWriter(dir string) (*Writer, error) {
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return nil, store.DiskError(err, "write a list of a layer in", dir)
	}
	w := &Writer{file: f, out: bufio.NewWriterSize(f, 64<<10), hash: blake3.New()}
	// Digests do not compress, names do.
	w.zstd, err = zstd.NewWriter(io.MultiWriter(w.out, w.hash), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(128<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		w.Close()
		return nil, err
	}
	head := binary.LittleEndian.AppendUint32([]byte(magic), version)
	head = binary.LittleEndian.AppendUint32(head, 0)
	_, _ = w.out.Write(head) // errors stay in out until Finish
	w.hash.Write(head)
	return w, nil
}

// Add appends an entry.
func (w *Writer) Add(e *image.LayerEntry) error {
	w.buf = appendEntry(w.buf[:0], e)
	_, err := w.zstd.Write(w.buf)
	return w.wrap(err)
}

// Finish ends the list, which belongs to the caller then.
func (w *Writer) Finish() (*List, error) {
	if _, err := w.zstd.Write([]byte{end}); err != nil {
		return nil, w.wrap(err)
	}
	err := w.zstd.Close()
	if err == nil {
		_, err = w.out.Write(w.hash.Sum(nil))
	}
	if err == nil {
		err = w.out.Flush()
	}
	if err != nil {
		return nil, w.wrap(err)
	}
	l := &List{file: w.file, temp: w.file.Name()}
	w.file = nil
	return l, nil
}

func (w *Writer) wrap(err error) error {
	if err == nil {
		return nil
	}
	return store.DiskError(err, "write a list of a layer in", w.file.Name())
}

// Close gives the list up; after Finish it does nothing.
func (w *Writer) Close() {
	if w.file != nil {
		os.Remove(w.file.Name())
		w.file.Close()
		w.file = nil
	}
}

// List is what a layer says.
type List struct {
	file *os.File
	temp string // where it lies while it is not kept
}

// Close closes the list, and removes it unless it is kept.
func (l *List) Close() {
	if l.temp != "" {
		os.Remove(l.temp)
	}
	l.file.Close()
}

// verify reads the list once and checks its digest.
func (l *List) verify() error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size() - trailer
	if size < header {
		return fault.New(fault.Corrupt, "a list of %d bytes", info.Size())
	}
	hash := blake3.New()
	if _, err := io.Copy(hash, io.NewSectionReader(l.file, 0, size)); err != nil {
		return err
	}
	var want [trailer]byte
	if _, err := l.file.ReadAt(want[:], size); err != nil {
		return err
	}
	if !bytes.Equal(hash.Sum(nil), want[:]) {
		return fault.New(fault.Corrupt, "the list does not match its digest")
	}
	return nil
}

// Each calls fn with every entry, in order, until it fails. Entries are fn's to keep.
func (l *List) Each(fn func(*image.LayerEntry) error) error {
	info, err := l.file.Stat()
	if err != nil {
		return fault.Wrap(err, "read", "the list of a layer")
	}
	return decode(io.NewSectionReader(l.file, 0, info.Size()-trailer), fn)
}

// decode reads a list without its trailer.
func decode(r io.Reader, fn func(*image.LayerEntry) error) error {
	var head [header]byte
	if _, err := io.ReadFull(r, head[:]); err != nil || string(head[:8]) != magic {
		return fault.New(fault.Corrupt, "not the list of a layer")
	}
	if v := binary.LittleEndian.Uint32(head[8:]); v != version || binary.LittleEndian.Uint32(head[12:]) != 0 {
		return fault.New(fault.Corrupt, "the list of a layer is of version %d; this Brisk reads %d", v, version)
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(1<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	in := bufio.NewReaderSize(z, 64<<10)
	for {
		e, err := readEntry(in)
		if err != nil {
			return damaged(err)
		}
		if e == nil {
			break
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	if _, err := in.ReadByte(); err != io.EOF {
		return fault.New(fault.Corrupt, "the list of a layer goes on behind its end")
	}
	return nil
}

// damaged gives what a decoder says a class.
func damaged(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fault.New(fault.Corrupt, "the list of a layer is damaged: %w", err)
}
