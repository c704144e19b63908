package store

import (
	"bytes"
	"testing"
	"time"
)

var ledgerSeeds = [][]byte{
	encodeLedger(leaseObject{Format: leaseFormat, Nonce: nonce(), Work: true}),
	encodeLedger(leaseObject{Format: leaseFormat, Nonce: nonce(), Start: time.Unix(1e9, 0).UTC(), Uses: []string{"packs/ab/cd"}, Broken: true}),
	encodeLedger(sentenceObject{Format: sentenceFormat, Nonce: nonce(), Condemned: []string{"packs/ab/cd"}}),
	encodeLedger(sentenceObject{Format: sentenceFormat, Nonce: nonce(), Since: time.Unix(1e9, 0).UTC(), Doomed: []string{"blobs/ab/cd.1"}}),
	[]byte(`{"format":"brisk hold 2","nonce":"0123456789abcdef0123456789abcdef"}`),
	[]byte(`{"format":"brisk condemned 1","nonce":"0123456789abcdef0123456789abcdef","doomed":["../x"]}`),
	[]byte(`{}{}`), []byte("null\n"), {},
}

// What is read is what was written, or an error.
func FuzzDecodeLedger(f *testing.F) {
	for _, s := range ledgerSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := decodeLease(b); err == nil {
			e := encodeLedger(o)
			if again, err := decodeLease(e); err != nil || !bytes.Equal(encodeLedger(again), e) {
				t.Fatalf("%s becomes %s: %v", b, e, err)
			}
		}
		if o, err := decodeSentence(b); err == nil {
			e := encodeLedger(o)
			if again, err := decodeSentence(e); err != nil || !bytes.Equal(encodeLedger(again), e) {
				t.Fatalf("%s becomes %s: %v", b, e, err)
			}
		}
	})
}
