package store

import (
	"bytes"
	"strings"
	"testing"

	"brisk.dev/brisk/internal/fault"
)

// FuzzRecordName reads whatever lies below records/KIND/ as a name: what it takes has
// exactly that key, and no other text gives the same name.
func FuzzRecordName(f *testing.F) {
	plain, sealed := &Store{}, &Store{opts: Options{Keys: testKeys(f, "a"), Sealed: true}}
	for _, text := range []string{"web", "a%2Fb", "%2Ehidden", "%zz", "a/b", "~", strings.Repeat("x", 199) + "~/y", strings.Repeat("x", 200)} {
		f.Add(text)
	}
	key, err := sealed.recordKey("names", strings.Repeat("long", 60))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(strings.TrimPrefix(key, "records/names/"))
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range []*Store{plain, sealed} {
			name, err := s.recordName("names", text)
			if err != nil {
				if !fault.Is(err, fault.Corrupt) {
					t.Fatal(err)
				}
				continue
			}
			key, err := s.recordKey("names", name)
			if err != nil || key != "records/names/"+text {
				t.Fatalf("%q is read as %q, whose key is %q, %v", text, name, key, err)
			}
			if err := CheckKey(key); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzAnswer opens answers of peers: nothing but the chunk that was asked for.
func FuzzAnswer(f *testing.F) {
	s := &Store{opts: Options{Keys: testKeys(f, "a")}}
	c := Chunk{Sum(text), uint32(len(text))}
	answer := func(data []byte) []byte {
		j := &job{}
		copy(j.data[:], data)
		return encodeAnswer(s.opts.Keys, Chunk{Sum(data), uint32(len(data))}, 7, j)
	}
	f.Add(answer(text))
	f.Add(answer(short))
	f.Add([]byte{1, 0, 0, 0, 7, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		buf := make([]byte, c.Size)
		if err := s.openAnswer(c, b, buf); err == nil && !bytes.Equal(buf, text) {
			t.Fatal("wrong content is taken")
		} else if err != nil && !fault.Is(err, fault.Corrupt) {
			t.Fatal(err)
		}
	})
}
