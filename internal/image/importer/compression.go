package importer

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"brisk.dev/brisk/internal/fault"
)

// magicLength is how many bytes of a stream identify its compression.
const magicLength = 8

// zstdWindow bounds the memory that a zstd stream may ask for, in bytes. It is
// what `zstd --long` writes at most, and what other readers accept.
const zstdWindow = 128 << 20

// compressions are the formats that archives and layers come in, by the bytes
// they begin with. What a media type claims is not asked: it is often wrong.
var compressions = []struct {
	name  string
	magic []byte
	open  func(io.Reader) (io.ReadCloser, error) // nil: known, but not read
}{
	{"gzip", []byte{0x1f, 0x8b}, func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
	{"zstd", []byte{0x28, 0xb5, 0x2f, 0xfd}, openZstd},
	{"zstd", []byte{0x50, 0x2a, 0x4d, 0x18}, openZstd}, // a skippable frame first, as zstd:chunked and pzstd write
	{"bzip2", []byte("BZh"), func(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(bzip2.NewReader(r)), nil }},
	{"xz", []byte{0xfd, '7', 'z', 'X', 'Z', 0}, nil},
	{"lzip", []byte("LZIP"), nil},
	{"lz4", []byte{0x04, 0x22, 0x4d, 0x18}, nil},
	{"7-Zip", []byte{'7', 'z', 0xbc, 0xaf}, nil},
	{"zip", []byte{'P', 'K', 3, 4}, nil},
}

func openZstd(r io.Reader) (io.ReadCloser, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// plain gives the uncompressed bytes of r, and the name of the compression, ""
// if there was none. The caller closes the reader, which leaves r open.
// Damaged data is of class Invalid when it is read.
func plain(r io.Reader) (io.ReadCloser, string, error) {
	buffered := bufio.NewReaderSize(r, 256<<10)
	head, err := buffered.Peek(magicLength)
	if err != nil && err != io.EOF {
		return nil, "", err
	}
	for _, c := range compressions {
		if !bytes.HasPrefix(head, c.magic) {
			continue
		}
		if c.open == nil {
			return nil, c.name, fault.New(fault.Invalid, "it is compressed with %s, which Brisk does not read", c.name).
				WithHint("Decompress it first, or compress it with zstd or gzip.")
		}
		d, err := c.open(buffered)
		if err != nil {
			return nil, c.name, damaged(c.name, err)
		}
		return &decompressor{c.name, d}, c.name, nil
	}
	return io.NopCloser(buffered), "", nil
}

// decompressor gives a decoder's errors a class.
type decompressor struct {
	name string
	io.ReadCloser
}

func (d *decompressor) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = damaged(d.name, err)
	}
	return n, err
}

// damaged classifies what a decoder says. Errors that came from below it, such as a
// cancelled context, have a class already and keep it.
func damaged(compression string, err error) error {
	var classed *fault.Error
	switch {
	case errors.As(err, &classed):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return fault.New(fault.Invalid, "the %s data ends too early: the file is truncated", compression)
	case fault.ClassOf(err) != fault.Internal:
		return err
	}
	return fault.New(fault.Invalid, "the %s data is damaged: %w", compression, err)
}
