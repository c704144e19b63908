package image

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// chunksNamed makes n different chunks of 1000 bytes and more.
func chunksNamed(n int) (l []store.Chunk) {
	for i := range n {
		l = append(l, store.Chunk{Digest: store.Sum([]byte{byte(i), byte(i >> 8)}), Size: uint32(1000 + i)})
	}
	return l
}

// order gives the indices in device of a profile's chunks; late ones are negative.
func order(p *Profile, device []store.Chunk) (l []int) {
	for _, c := range p.Chunks {
		i := slices.Index(device, c.Chunk)
		if c.Late {
			i = -i
		}
		l = append(l, i)
	}
	return l
}

func complete(ready int, chunks ...uint32) Run {
	return Run{Chunks: chunks, Ready: ready, Complete: true}
}

func TestMerge(t *testing.T) {
	device := chunksNamed(100)
	for _, c := range []struct {
		name string
		runs []Run
		want []int
	}{
		{"one run", []Run{complete(3, 7, 5, 9, 2, 1)}, []int{7, 5, 9, -2, -1}},
		{"the earliest place counts", []Run{complete(3, 7, 5, 9), complete(3, 9, 5, 7)}, []int{7, 9, 5}},
		{"before ready counts more than after", []Run{complete(1, 7, 5), complete(2, 7, 5)}, []int{7, 5}},
		{"a chunk of one run stays for a while", []Run{complete(2, 7, 5), complete(1, 7), complete(1, 7), complete(1, 7)}, []int{7, 5}},
		{"and is forgotten", []Run{complete(2, 7, 5), complete(1, 7), complete(1, 7), complete(1, 7), complete(1, 7)}, []int{7}},
		{"one that comes back stays longer", []Run{complete(2, 7, 5), complete(1, 7), complete(2, 7, 5), complete(1, 7), complete(1, 7), complete(1, 7)}, []int{7, 5}},
		{"what the first partial run may have used counts", []Run{{Before: []uint32{4, 3}, Chunks: []uint32{8, 6}, Ready: 1}}, []int{4, 3, 8, -6}},
		{"that of further ones does not", []Run{complete(1, 7), {Before: []uint32{4, 3}, Chunks: []uint32{8}, Ready: 1}}, []int{7, 8}},
		{"partial runs prove nothing unneeded", []Run{complete(2, 7, 5), {}, {}, {}, {}, {}, {}}, []int{7, 5}},
		{"a complete run replaces partial ones", []Run{{Before: []uint32{4, 3}, Chunks: []uint32{8}, Ready: 1}, complete(1, 8)}, []int{8}},
		{"chunks that the image does not have", []Run{complete(2, 7, 1000)}, []int{7}},
		{"nothing", []Run{complete(0)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &Profile{}
			for _, r := range c.runs {
				p.Merge(r, device)
			}
			require.Equal(t, c.want, order(p, device))
		})
	}
}

func drawRun(t *rapid.T, chunks int) Run {
	order := rapid.Permutation(func() (l []uint32) {
		for i := range chunks {
			l = append(l, uint32(i))
		}
		return l
	}()).Draw(t, "order")
	n := rapid.IntRange(0, chunks).Draw(t, "read")
	cut := rapid.IntRange(0, n).Draw(t, "before")
	r := Run{Chunks: order[cut:n], Ready: rapid.IntRange(0, n-cut).Draw(t, "ready"), Complete: rapid.Bool().Draw(t, "complete")}
	if !r.Complete {
		r.Before = order[:cut]
	}
	return r
}

func TestMergeKeepsItsPromises(t *testing.T) {
	const chunks = 20
	device := chunksNamed(chunks)
	rapid.Check(t, func(t *rapid.T) {
		p := &Profile{}
		missed := map[store.Chunk]int{}
		for range rapid.IntRange(0, 30).Draw(t, "runs") {
			listed := p.List()
			sides := map[store.Chunk]bool{}
			for _, c := range p.Chunks {
				sides[c.Chunk] = c.Late
			}
			first := p.Runs == 0
			r := drawRun(t, chunks)
			changes := p.Merge(r, device)
			after := map[store.Chunk]bool{}
			same := len(listed) == len(p.Chunks)
			for i, c := range p.Chunks {
				if after[c.Chunk] {
					t.Fatalf("%v is listed twice", c)
				}
				after[c.Chunk] = true
				if i > 0 && before(c, p.Chunks[i-1]) {
					t.Fatalf("%v is out of order", c)
				}
				if c.Heat == 0 || c.Heat > hottest {
					t.Fatalf("heat %d", c.Heat)
				}
				late, was := sides[c.Chunk]
				same = same && was && late == c.Late
			}
			if same != (changes == 0) && (!r.Complete || !first) {
				t.Fatalf("%d changes, the same: %v", changes, same)
			}
			for _, i := range r.Chunks {
				if !after[device[i]] {
					t.Fatalf("chunk %d was read and is not listed", i)
				}
				missed[device[i]] = 0
			}
			if !r.Complete {
				for _, c := range listed {
					if !after[c] {
						t.Fatalf("a partial run removed %v", c)
					}
				}
				continue
			}
			for _, c := range device {
				if !slices.Contains(r.Chunks, uint32(slices.Index(device, c))) {
					if missed[c]++; missed[c] >= hottest && after[c] {
						t.Fatalf("%v was not read in %d runs and is listed", c, missed[c])
					}
				}
			}
		}
		got, err := ParseProfile(p.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Chunks, p.Chunks) || got.Runs != p.Runs || got.Partial != p.Partial || !got.Updated.Equal(p.Updated.Truncate(time.Second)) && len(p.Chunks) > 0 {
			t.Fatalf("%+v, want %+v", got, p)
		}
	})
}

func TestProfileIsBounded(t *testing.T) {
	device := make([]store.Chunk, maxProfile+10)
	run := Run{Complete: true, Ready: len(device)}
	for i := range device {
		device[i] = store.Chunk{Digest: store.Sum([]byte{byte(i), byte(i >> 8), byte(i >> 16)}), Size: 1}
		run.Chunks = append(run.Chunks, uint32(i))
	}
	p := &Profile{}
	p.Merge(run, device)
	require.Len(t, p.Chunks, maxProfile)
	require.Equal(t, device[maxProfile-1], p.Chunks[maxProfile-1].Chunk)
}

// sampleProfile has everything that a profile can have.
func sampleProfile() *Profile {
	device := chunksNamed(6)
	p := &Profile{Image: store.Sum([]byte("image")), Entry: NewEntry("function", "app.f")}
	p.Merge(complete(2, 3, 1, 0), device)
	p.Updated = time.Unix(1_700_000_000, 0)
	frame := func(i int, off, stored uint32, raw bool) store.Frame {
		return store.Frame{Chunk: device[i], Offset: off, Stored: stored, Raw: raw}
	}
	p.Hot = []store.HotPack{
		{Pack: store.Sum([]byte("a")), Epoch: 7, Frames: []store.Frame{frame(3, 16, 100, false), frame(5, 116, 1005, true)}},
		{Pack: store.Sum([]byte("b")), Frames: []store.Frame{frame(1, 16, 200, false)}},
	}
	return p
}

func TestProfileRoundTrip(t *testing.T) {
	p := sampleProfile()
	b := p.Encode()
	got, err := ParseProfile(b)
	require.NoError(t, err)
	require.Equal(t, p, got)
	require.Equal(t, b, got.Encode())
	require.Equal(t, 88+14+4*48+2*40+3*16+32, len(b))
	require.Equal(t, "3d99b46f", store.Sum(b).String()[:8], "the format has changed")
}

func TestProfileThatIsNone(t *testing.T) {
	good := sampleProfile().Encode()
	reseal := func(change func(b []byte)) []byte {
		b := slices.Clone(good[:len(good)-32])
		change(b)
		sum := store.Sum(b)
		return append(b, sum[:]...)
	}
	const table = 88 + 14 // where the chunks begin
	for name, b := range map[string][]byte{
		"empty":             nil,
		"cut":               good[:len(good)-1],
		"longer":            append(slices.Clone(good), 0),
		"damaged":           append(slices.Clone(good[:100]), good[101:]...),
		"another version":   reseal(func(b []byte) { b[8] = 2 }),
		"counts":            reseal(func(b []byte) { b[75] = 1 }),
		"table and list":    reseal(func(b []byte) { b[72] = 9 }),
		"chunk of no bytes": reseal(func(b []byte) { clear(b[table+32 : table+36]) }),
		"twice":             reseal(func(b []byte) { copy(b[table:], b[table+48:table+80]) }),
		"heat":              reseal(func(b []byte) { b[table+44] = 200 }),
		"order":             reseal(func(b []byte) { b[table+36] = 77 }),
		"frame of no chunk": reseal(func(b []byte) { b[table+4*48+40] = 4 }),
		"frames overlap":    reseal(func(b []byte) { b[table+4*48+40+16+4] = 115 }),
		"frame of no bytes": reseal(func(b []byte) { clear(b[table+4*48+40+8:][:4]) }),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseProfile(b)
			require.True(t, fault.Is(err, fault.Corrupt), "%v", err)
		})
	}
}

func TestStale(t *testing.T) {
	device := chunksNamed(100)
	p := &Profile{}
	run := Run{Complete: true}
	for i := range 80 {
		run.Chunks = append(run.Chunks, uint32(i))
	}
	p.Merge(run, device)
	hot := func(from, to int) []store.HotPack {
		h := store.HotPack{}
		for _, c := range device[from:to] {
			h.Frames = append(h.Frames, store.Frame{Chunk: c})
		}
		return []store.HotPack{h}
	}
	for _, c := range []struct {
		from, to int
		want     bool
	}{{0, 80, false}, {0, 75, false}, {0, 60, true}, {0, 95, false}, {10, 100, true}, {0, 0, true}} {
		p.Hot = hot(c.from, c.to)
		require.Equal(t, c.want, p.Stale(), "%v", c)
	}
}

func FuzzParseProfile(f *testing.F) {
	f.Add(sampleProfile().Encode())
	f.Add((&Profile{}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 32 { // the checksum is not what is to be tested
			sum := store.Sum(b[:len(b)-32])
			copy(b[len(b)-32:], sum[:])
		}
		p, err := ParseProfile(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		again, err := ParseProfile(p.Encode())
		if err != nil {
			t.Fatal(err)
		}
		require.Equal(t, p, again)
	})
}
