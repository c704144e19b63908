package store

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
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

// indexLog appends to that file. A failure to write makes it useless until the
// next opening, and is the caller's to log.
type indexLog struct {
	mu   sync.Mutex
	path string
	file *os.File // nil: not writable
}

// loggedPack is what the log knows of a pack.
type loggedPack struct {
	size    int64
	index   packIndex
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
	records := 0
	for b = b[logHeader:]; len(b) > 0; records++ {
		if len(b) < logFrame {
			return packs, true
		}
		n := int(binary.LittleEndian.Uint32(b))
		if n > len(b)-logFrame {
			return packs, true
		}
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
			packs[Digest(body[1:33])] = &loggedPack{size: int64(binary.LittleEndian.Uint64(body[33:])), index: x, how: how}
		case n == 65 && body[0] == recordDamage:
			if p := packs[Digest(body[1:33])]; p != nil {
				p.damaged = append(p.damaged, Digest(body[33:]))
			}
		default:
			return packs, true
		}
	}
	return packs, records > 2*len(packs)
}

// create writes the log anew, with the packs that are then known, and leaves it
// open for appending.
func (l *indexLog) create(known func() map[Digest]*loggedPack) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
	b := append(make([]byte, 0, 64<<10), logMagic...)
	b = binary.LittleEndian.AppendUint32(b, logVersion)
	b = binary.LittleEndian.AppendUint32(b, 0)
	for d, p := range known() {
		b = appendPackRecord(b, d, p.size, p.how, p.index)
		for _, chunk := range p.damaged {
			b = appendDamageRecord(b, d, chunk)
		}
	}
	f, err := os.CreateTemp(filepath.Dir(l.path), filepath.Base(l.path)+".*")
	if err != nil {
		return DiskError(err, "write", l.path)
	}
	_, err = f.Write(b)
	if err == nil {
		err = os.Rename(f.Name(), l.path)
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		return DiskError(err, "write", l.path)
	}
	l.file = f
	return nil
}

// open continues the log that read found good.
func (l *indexLog) open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fault.Wrap(err, "open", l.path)
	}
	l.file = f
	return nil
}

func (l *indexLog) addPack(p *pack) error {
	return l.append(appendPackRecord(nil, p.digest, p.size, p.how, p.index))
}

func (l *indexLog) addDamage(in, chunk Digest) error {
	return l.append(appendDamageRecord(nil, in, chunk))
}

func (l *indexLog) append(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	if _, err := l.file.Write(b); err != nil {
		// Half a record may be there: what follows would be lost with it.
		l.file.Close()
		l.file = nil
		return DiskError(err, "write", l.path)
	}
	return nil
}

func (l *indexLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
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
