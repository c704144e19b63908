package store

import (
	"bufio"
	"crypto/rand"
	"os"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/store/seal"
)

// packWriter writes one pack to a file, and its digest on the way.
type packWriter struct {
	file  *os.File
	out   *bufio.Writer
	hash  *blake3.Hasher
	off   int64
	index packIndex
	how   packSeal
	keys  *seal.Keys // nil: not sealed
}

// sealedPack is a complete pack in a local file.
type sealedPack struct {
	digest Digest
	size   int64
	index  packIndex
	how    packSeal
	path   string

	stored []byte         // the index as it is in the file
	key    seal.ID        // of the footer
	hash   *blake3.Hasher // of everything before the footer
}

func newPackWriter(dir string, keys *seal.Keys, epoch uint32) (*packWriter, error) {
	f, err := os.CreateTemp(dir, "pack-*")
	if err != nil {
		return nil, err
	}
	w := &packWriter{file: f, out: bufio.NewWriterSize(f, 1<<20), hash: blake3.New(), keys: keys}
	if keys != nil {
		w.how = packSeal{sealed: true, epoch: epoch}
	}
	return w, w.write(encodePackHeader())
}

func (w *packWriter) write(b []byte) error {
	w.hash.Write(b)
	n, err := w.out.Write(b)
	w.off += int64(n)
	return err
}

// add appends a frame, sealed if the pack is.
func (w *packWriter) add(d Digest, size uint32, frame []byte, raw bool) error {
	e := entry{digest: d, offset: uint32(w.off), stored: uint32(len(frame)), size: size, raw: raw}
	w.index = w.index.append(e)
	return w.write(frame)
}

func (w *packWriter) full() bool { return w.off >= packTarget || w.index.len() >= packFull }

// seal completes the file, but for syncing it.
func (w *packWriter) seal() (sealedPack, error) {
	off := w.off
	p := sealedPack{index: w.index, how: w.how, path: w.file.Name(), stored: w.index}
	if w.keys != nil {
		p.stored, p.key = w.keys.SealObject(indexKind, "", w.index), w.keys.ID()
	}
	if err := w.write(p.stored); err != nil {
		return sealedPack{}, err
	}
	p.hash = w.hash.Clone()
	if err := w.write(encodePackFooter(p.stored, off, p.how, p.key, [16]byte{})); err != nil {
		return sealedPack{}, err
	}
	p.size = w.off
	w.hash.Sum(p.digest[:0])
	return p, w.out.Flush()
}

// resalt gives the pack, durably, another name and another salt, all else alike.
// Whoever is about to publish a pack under a name that is condemned does that.
func (p *sealedPack) resalt() error {
	var salt [16]byte
	rand.Read(salt[:]) // does not fail
	end := p.size - packFooter
	foot := encodePackFooter(p.stored, end-int64(len(p.stored)), p.how, p.key, salt)
	f, err := os.OpenFile(p.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(foot, end); err != nil {
		return err
	}
	hash := p.hash.Clone()
	hash.Write(foot)
	hash.Sum(p.digest[:0])
	return f.Sync()
}
