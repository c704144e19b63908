package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"brisk.dev/brisk/bench/drive"
	"brisk.dev/brisk/bench/report"
	"brisk.dev/brisk/internal/lazyfs"
)

const (
	memoryImages = 20
	memoryFiles  = 30_000
	memoryIdle   = 15 * time.Second
)

// memory has a server mount 20 images of 30,000 files each, by running a program in
// each, and adds up what Brisk's processes have resident when they have been idle for a while.
func memory(o options) (_ []report.Row, err error) {
	data := filepath.Join(o.dir, "memory-data")
	if err := os.RemoveAll(data); err != nil {
		return nil, err
	}
	s, err := drive.Up(o.ctx, o.brisk, data, -1)
	if err != nil {
		return nil, err
	}
	defer func() {
		if derr := s.Down(); err == nil {
			err = derr
		}
		if rerr := os.RemoveAll(data); err == nil {
			err = rerr
		}
	}()
	for i := range memoryImages {
		progress("image %d of %d, of %d files", i+1, memoryImages, memoryFiles)
		tree := filepath.Join(o.dir, "many")
		if err := manyFiles(tree, i); err != nil {
			return nil, err
		}
		name := fmt.Sprintf("many%d", i)
		for _, args := range [][]string{{"image", "import", "--data", data, tree, "--name", name}, {"run", "--data", data, "--image", name, "--", "/true"}} {
			if out, err := exec.CommandContext(o.ctx, o.brisk, args...).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("brisk %s: %w: %s", strings.Join(args, " "), err, out)
			}
		}
		if err := os.RemoveAll(tree); err != nil {
			return nil, err
		}
	}
	if err := s.Settle(o.ctx, 0); err != nil {
		return nil, err
	}
	progress("until the server has been idle for %v", memoryIdle)
	time.Sleep(memoryIdle)
	total, err := s.RSS()
	if err != nil {
		return nil, err
	}
	if pid, alive := lazyfs.HolderPID(s.Paths.Run); alive {
		n, err := drive.RSS(pid)
		if err != nil {
			return nil, err
		}
		total += n
	}
	return []report.Row{report.Value("20 mounted images of 30,000 files", "server and holder, resident when idle", 1, float64(total)/1e6, "MB", 150)}, nil
}

// manyFiles makes a tree of small files that differ from those of other seeds, and
// a program that ends at once.
func manyFiles(root string, seed int) error {
	for i := range memoryFiles {
		dir := filepath.Join(root, fmt.Sprint(i/300))
		if i%300 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), fmt.Appendf(nil, "%d %d", seed, i), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(root, "true"), trueProgram(), 0o755)
}

// trueProgram is a static ELF executable for x86-64 that exits with 0.
func trueProgram() []byte {
	const base, header = 0x400000, 64 + 56
	code := []byte{0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05} // xor edi, edi; mov eax, SYS_exit; syscall
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 2)  // executable
	b = le.AppendUint16(b, 62) // x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header) // entry
	b = le.AppendUint64(b, 64)          // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // load
	b = le.AppendUint32(b, 5) // readable, executable
	for _, v := range []uint64{0, base, base, uint64(header + len(code)), uint64(header + len(code)), 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}
