package lazyfs

// buffer is memory for the answer to a READ: a header, and from dataStart on the
// data. Data begins at a page, so that a disk can write to it directly: Go puts
// objects that large at the beginning of pages.
type buffer []byte

const (
	dataStart = 4096
	chunkData = 128 << 10
)

// data is where n bytes of data go.
func (b buffer) data(n int) []byte { return b[dataStart : dataStart+n] }

// buffers has some of two sizes: most reads are of a chunk or less. They are kept
// from the garbage collector, whom a sequential read would otherwise have run every
// few requests, throwing away what the next ones need.
var buffers = bufferPools{chunk: make(chan buffer, 16), whole: make(chan buffer, 6)}

type bufferPools struct{ chunk, whole chan buffer }

func (p *bufferPools) get(n int) buffer {
	pool, size := p.chunk, chunkData
	if n > chunkData {
		pool, size = p.whole, maxRead
	}
	select {
	case b := <-pool:
		return b
	default:
		return make(buffer, dataStart+size)
	}
}

func (p *bufferPools) put(b buffer) {
	pool := p.whole
	if len(b) == dataStart+chunkData {
		pool = p.chunk
	}
	select {
	case pool <- b:
	default:
	}
}
