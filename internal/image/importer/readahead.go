package importer

import (
	"io"
	"sync"
)

// Sizes of reading ahead: enough for decompression and hashing to run side by side.
const (
	aheadBuffers = 8
	aheadSize    = 256 << 10 // bytes in each
)

// ahead reads from another reader in a goroutine of its own.
type ahead struct {
	full chan block // closed by the goroutine, after the block with the error
	free chan []byte
	quit chan struct{}
	done chan struct{}
	once sync.Once

	now  block
	rest []byte
}

type block struct {
	data []byte
	err  error
}

// readAhead starts to read r. Until Close has returned, r belongs to it.
func readAhead(r io.Reader) *ahead {
	a := &ahead{
		full: make(chan block, aheadBuffers), free: make(chan []byte, aheadBuffers),
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	for range aheadBuffers {
		a.free <- nil // made when first used
	}
	go a.run(r)
	return a
}

func (a *ahead) run(r io.Reader) {
	defer close(a.done)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-a.quit:
			return
		}
		if buf == nil {
			buf = make([]byte, aheadSize)
		}
		n, err := io.ReadFull(r, buf)
		if err == io.ErrUnexpectedEOF && n < len(buf) {
			err = io.EOF // ReadFull's own word for the last block; a decoder's error has a class
		}
		a.full <- block{buf[:n], err} // has room for all buffers
		if err != nil {
			return
		}
	}
}

// Read is for one goroutine.
func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.now.err != nil {
			return 0, a.now.err
		}
		if a.now.data != nil {
			a.free <- a.now.data[:cap(a.now.data)]
		}
		a.now = <-a.full
		a.rest = a.now.data
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close stops the reading and waits for it. Nobody may be in Read, nor call it again. It
// may be called again.
func (a *ahead) Close() error {
	a.once.Do(func() { close(a.quit) })
	<-a.done
	return nil
}
