package sandbox

import (
	"encoding/binary"
	"hash"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/store"
)

// Shape digests the part of a spec that a checkpoint holds and that a restore
// must therefore repeat: two specs of one shape can restore each other's
// checkpoints. Limits.Pids is in it, because the kernel inside enforces it with a
// resource limit that is saved with the processes; CPU and memory are not.
func Shape(s Spec) store.Digest {
	d := shaper{h: blake3.New()}
	d.text("brisk sandbox shape 1")
	d.list(s.Args)
	d.list(s.Env)
	d.text(s.Cwd)
	d.number(uint64(s.UID))
	d.number(uint64(s.GID))
	d.number(uint64(len(s.Groups)))
	for _, g := range s.Groups {
		d.number(uint64(g))
	}
	d.text(s.Hostname)
	d.number(uint64(len(s.Mounts)))
	for _, m := range s.Mounts {
		d.text(m.Target)
		d.flag(m.ReadOnly)
		d.flag(m.Sockets)
	}
	// A pipe and /dev/null are different files to the processes that hold them.
	d.flag(s.Stdin != nil)
	d.flag(s.Stdout != nil)
	d.flag(s.Stderr != nil)
	d.flag(s.Netns != "")
	d.flag(s.Upper)
	d.number(uint64(s.Limits.Pids))
	var sum store.Digest
	copy(sum[:], d.h.Sum(nil))
	return sum
}

// shaper writes values so that no two sequences of them give the same bytes:
// every text is preceded by its length.
type shaper struct{ h hash.Hash }

func (d shaper) number(n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	_, _ = d.h.Write(b[:])
}

func (d shaper) text(s string) {
	d.number(uint64(len(s)))
	_, _ = d.h.Write([]byte(s))
}

func (d shaper) list(l []string) {
	d.number(uint64(len(l)))
	for _, s := range l {
		d.text(s)
	}
}

func (d shaper) flag(b bool) {
	if b {
		d.number(1)
	} else {
		d.number(0)
	}
}
