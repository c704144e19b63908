package store

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"brisk.dev/brisk/internal/fault"
)

// The local copy of the packs' indexes, so that opening reads one file instead
// of the end of each pack: docs/format/pack.md, "The local copy". It is a cache:
// nothing is lost with it but time and the memory of damage.
const (
	logMagic   = "BRSKPIDX"
	logVersion = 2
	logHeader  = 16
	logFrame   = 8 // bytes before a record: length, CRC-32C

	recordPack   = 1  // digest, u64 size, u32 flags, u32 epoch, index
	recordDamage = 2  // digest of the pack, digest of the chunk
	packPrefix   = 49 // bytes of the first before the index
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// indexLog appends to that file, and tells the index where in it each pack's lies. After
// a failure to write, which is the caller's to log, nothing more is written until the next opening.
// Lock order: indexLog.mu, index.mu.
type indexLog struct {
	mu     sync.Mutex
	path   string
	file   *os.File // nil: there is none
	size   int64
	broken bool
}

// loggedPack is what the log knows of a pack.
type loggedPack struct {
	size    int64
	index   packIndex
	at      int64 // where the index is, in the file that was read
	how     packSeal
	damaged []Digest
}

// read gives the packs of the log, and whether it should be written anew because
// it is damaged or half of it is outdated.
func (l *indexLog) read() (packs map[Digest]*loggedPack, rewrite bool, err error) {
	b, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil
	}
	if err != nil {
		return nil, true, fault.Wrap(err, "read", l.path)
	}
	packs, rewrite = decodeIndexLog(b)
	return packs, rewrite, nil
}

func decodeIndexLog(b []byte) (packs map[Digest]*loggedPack, rewrite bool) {
	packs = map[Digest]*loggedPack{}
	if len(b) < logHeader || string(b[:8]) != logMagic || binary.LittleEndian.Uint32(b[8:]) != logVersion {
		return packs, true
	}
	records, whole := 0, len(b)
	for b = b[logHeader:]; len(b) > 0; records++ {
		if len(b) < logFrame {
			return packs, true
		}
		n := int(binary.LittleEndian.Uint32(b))
		if n > len(b)-logFrame {
			return packs, true
		}
		at := whole - len(b) + logFrame
		body := b[logFrame : logFrame+n]
		if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
			return packs, true
		}
		b = b[logFrame+n:]
		switch {
		case n > packPrefix && body[0] == recordPack:
			x := packIndex(body[packPrefix:])
			flags := binary.LittleEndian.Uint32(body[41:])
			how := packSeal{sealed: flags == flagSealed, epoch: binary.LittleEndian.Uint32(body[45:])}
			if _, err := x.checkEntries(how); err != nil || flags&^flagSealed != 0 {
				return packs, true
			}
			packs[Digest(body[1:33])] = &loggedPack{size: int64(binary.LittleEndian.Uint64(body[33:])), index: x, at: int64(at) + packPrefix, how: how}
		case n == 65 && body[0] == recordDamage:
			if p := packs[Digest(body[1:33])]; p != nil {
				p.damaged = append(p.damaged, Digest(body[33:]))
			}
		default:
			return packs, true
		}
	}
	live := len(packs)
	for _, p := range packs {
		live += len(p.damaged)
	}
	return packs, records > 2*live
}

// create writes the log anew, with the packs of the index, and leaves it open for
// appending.
func (l *indexLog) create(x *index) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.CreateTemp(filepath.Dir(l.path), filepath.Base(l.path)+".*")
	if err != nil {
		return DiskError(err, "write", l.path)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = DiskError(err, "write", l.path)
		}
	}()
	b := append([]byte(nil), logMagic...)
	b = binary.LittleEndian.AppendUint32(b, logVersion)
	b = binary.LittleEndian.AppendUint32(b, 0)
	places := map[Digest]int64{}
	var size int64
	for d, read := range x.logged() {
		p := read()
		if p == nil {
			continue
		}
		places[d] = size + int64(len(b)) + logFrame + packPrefix
		b = appendPackRecord(b, d, p.size, p.how, p.index)
		for _, chunk := range p.damaged {
			b = appendDamageRecord(b, d, chunk)
		}
		if _, err := f.Write(b); err != nil {
			return err
		}
		size, b = size+int64(len(b)), b[:0]
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	size += int64(len(b))
	if err := os.Rename(f.Name(), l.path); err != nil {
		return err
	}
	for d, at := range places {
		x.settle(d, f, at)
	}
	if l.file != nil { // which no pack refers to any more
		l.file.Close()
	}
	l.file, l.size, l.broken = f, size, false
	return nil
}

// open continues the log that read found good, to hold these packs.
func (l *indexLog) open(x *index, packs map[Digest]*loggedPack) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return fault.Wrap(err, "open", l.path)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		f.Close()
		return fault.Wrap(err, "open", l.path)
	}
	l.file, l.size = f, size
	for d, p := range packs {
		x.settle(d, f, p.at)
	}
	return nil
}

// addPack adds a pack of the index.
func (l *indexLog) addPack(x *index, p *pack, entries packIndex) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.size + logFrame + packPrefix
	wrote, err := l.appendLocked(appendPackRecord(nil, p.digest, p.size, p.how, entries))
	if wrote {
		x.settle(p.digest, l.file, at)
	}
	return err
}

func (l *indexLog) addDamage(in, chunk Digest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.appendLocked(appendDamageRecord(nil, in, chunk))
	return err
}

func (l *indexLog) appendLocked(b []byte) (wrote bool, err error) {
	if l.file == nil || l.broken {
		return false, nil
	}
	if _, err := l.file.WriteAt(b, l.size); err != nil {
		l.broken = true // half a record may be there: what follows would be lost with it
		return false, DiskError(err, "write", l.path)
	}
	l.size += int64(len(b))
	return true, nil
}

// close is the last thing that is done with the index.
func (l *indexLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.broken = true
	}
}

func appendPackRecord(b []byte, d Digest, size int64, how packSeal, x packIndex) []byte {
	body := make([]byte, 0, packPrefix+len(x))
	body = append(append(body, recordPack), d[:]...)
	body = binary.LittleEndian.AppendUint64(body, uint64(size))
	var flags uint32
	if how.sealed {
		flags = flagSealed
	}
	body = binary.LittleEndian.AppendUint32(body, flags)
	body = binary.LittleEndian.AppendUint32(body, how.epoch)
	return appendRecord(b, append(body, x...))
}

func appendDamageRecord(b []byte, in, chunk Digest) []byte {
	body := append(make([]byte, 0, 65), recordDamage)
	return appendRecord(b, append(append(body, in[:]...), chunk[:]...))
}

func appendRecord(b, body []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
	return append(b, body...)
}
