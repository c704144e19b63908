package lazyfs

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// The part of the FUSE protocol (linux/fuse.h) that a flat, read-only directory
// of regular files needs. All integers are in the machine's byte order.

var order = binary.NativeEndian

const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opStatfs      = 17
	opRelease     = 18
	opFlush       = 25
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opAccess      = 34
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
)

// Flags of INIT. Those from bit 32 on travel in a second word, which the kernel
// reads only if initExt is set.
const (
	initAsyncRead     = 1 << 0
	initBigWrites     = 1 << 5
	initAsyncDIO      = 1 << 15 // reads by direct I/O run side by side, and fail as a whole
	initParallelDir   = 1 << 18
	initMaxPages      = 1 << 22
	initExplicitInval = 1 << 25 // no dropping of cached pages but on our word
	initExt           = 1 << 30
	initResend        = 1 << 39 // the kernel knows notifyResend (from 6.9)

	wantedFlags = initAsyncRead | initBigWrites | initAsyncDIO | initParallelDir |
		initMaxPages | initExplicitInval | initExt
)

const (
	protoMajor   = 7
	protoMinor   = 40 // the newest that this file was written for
	minMinor     = 31 // kernel 5.4
	inHeader     = 40
	outHeader    = 16
	rootNode     = 1
	keepCache    = 1 << 1    // flag of OPEN: cached pages stay valid; content never changes
	forever      = 24 * 3600 // seconds that names and attributes may be cached
	maxRead      = 1 << 20   // bytes in one READ, 256 pages: the most that kernels allow
	notifyResend = 7         // ask for everything again that a dead server had taken
	requestBytes = 8192      // the kernel refuses to fill less; enough for all that a reader sends
	maxWrite     = 4096      // the least the kernel accepts; it bounds requestBytes from below
	attrBytes    = 88
	entryBytes   = 40 + attrBytes
	attrOutBytes = 16 + attrBytes
)

// request is one message of the kernel's.
type request struct {
	op, pid      uint32
	unique, node uint64
	body         []byte
}

// parseRequest cuts a message; ok is false if it is shorter than its header says.
func parseRequest(b []byte) (r request, ok bool) {
	if len(b) < inHeader || int(order.Uint32(b)) != len(b) {
		return r, false
	}
	return request{
		op:     order.Uint32(b[4:]),
		unique: order.Uint64(b[8:]),
		node:   order.Uint64(b[16:]),
		pid:    order.Uint32(b[32:]),
		body:   b[inHeader:],
	}, true
}

// readArgs are offset and size of a READ or READDIR.
func (r request) readArgs() (off int64, size int, ok bool) {
	if len(r.body) < 20 {
		return 0, 0, false
	}
	off, size = int64(order.Uint64(r.body[8:])), int(order.Uint32(r.body[16:]))
	return off, size, off >= 0 && size >= 0 && size <= maxRead
}

// name is the argument of a LOOKUP.
func (r request) name() string {
	for i, c := range r.body {
		if c == 0 {
			return string(r.body[:i])
		}
	}
	return string(r.body)
}

// putHeader begins every answer. One with an error has no body.
func putHeader(b []byte, unique uint64, errno syscall.Errno, body int) {
	order.PutUint32(b, uint32(outHeader+body))
	order.PutUint32(b[4:], uint32(-int32(errno)))
	order.PutUint64(b[8:], unique)
}

// resendMessage is the notification that makes the kernel send everything again
// that was taken and not answered.
func resendMessage() []byte {
	b := make([]byte, outHeader)
	order.PutUint32(b, outHeader)
	order.PutUint32(b[4:], notifyResend)
	return b
}

// session is what INIT agreed on.
type session struct {
	resend bool // a successor can have unanswered requests sent again
}

// answerInit gives the body of the answer to INIT, or nil if the kernel is older
// than anything Brisk runs on.
func answerInit(body []byte) ([]byte, session) {
	if len(body) < 16 || order.Uint32(body) != protoMajor || order.Uint32(body[4:]) < minMinor {
		return nil, session{}
	}
	offered := uint64(order.Uint32(body[12:]))
	if offered&initExt != 0 && len(body) >= 20 {
		offered |= uint64(order.Uint32(body[16:])) << 32
	}
	flags := offered & (wantedFlags | initResend)
	b := make([]byte, 64)
	order.PutUint32(b, protoMajor)
	order.PutUint32(b[4:], min(order.Uint32(body[4:]), protoMinor))
	order.PutUint32(b[8:], 64<<20) // readahead: no limit from here, see setReadAhead
	order.PutUint32(b[12:], uint32(flags))
	// Reads wait for their turn here, where each image has its own budget, and
	// not in the kernel, where the reads of all images stand in one queue.
	order.PutUint16(b[16:], 4096) // max_background
	order.PutUint16(b[18:], 4096) // congestion_threshold
	order.PutUint32(b[20:], maxWrite)
	order.PutUint32(b[24:], 1) // time granularity, ns
	order.PutUint16(b[28:], maxRead/4096)
	order.PutUint32(b[32:], uint32(flags>>32))
	return b, session{resend: flags&initResend != 0}
}

// appendAttr encodes the attributes of the root (size < 0) or of a file.
func appendAttr(b []byte, node uint64, size int64) []byte {
	var a [attrBytes]byte
	order.PutUint64(a[0:], node)
	if size < 0 {
		order.PutUint32(a[60:], unix.S_IFDIR|0o500)
		order.PutUint32(a[64:], 2)
	} else {
		order.PutUint64(a[8:], uint64(size))
		order.PutUint64(a[16:], uint64(size)/512)
		order.PutUint32(a[60:], unix.S_IFREG|0o400)
		order.PutUint32(a[64:], 1)
	}
	order.PutUint32(a[80:], 4096)
	return append(b, a[:]...)
}

func appendAttrOut(b []byte, node uint64, size int64) []byte {
	b = order.AppendUint64(b, forever)
	b = order.AppendUint64(b, 0)
	return appendAttr(b, node, size)
}

func appendEntry(b []byte, node uint64, size int64) []byte {
	for _, v := range []uint64{node, 1 /* generation */, forever, forever, 0} {
		b = order.AppendUint64(b, v)
	}
	return appendAttr(b, node, size)
}

func appendOpen(b []byte, flags uint32) []byte {
	b = order.AppendUint64(b, 0) // no handles: nothing to lose in a restart
	b = order.AppendUint32(b, flags)
	return order.AppendUint32(b, 0)
}

func appendStatfs(b []byte) []byte {
	var s [80]byte
	order.PutUint32(s[40:], 4096) // bsize
	order.PutUint32(s[44:], 255)  // namelen
	order.PutUint32(s[48:], 4096) // frsize
	return append(b, s[:]...)
}

// appendDirent adds an entry of a directory listing; next is the offset behind it.
func appendDirent(b []byte, node uint64, name string, next int) []byte {
	b = order.AppendUint64(b, node)
	b = order.AppendUint64(b, uint64(next))
	b = order.AppendUint32(b, uint32(len(name)))
	b = order.AppendUint32(b, unix.DT_REG)
	b = append(b, name...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}
