package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]size{
		"0": 0, "1": 1, "123456": 123456, "4k": 4096, "500M": 500 << 20, "20G": 20 << 30, "20GiB": 20 << 30, "20gb": 20 << 30,
		"1.5T": 3 << 39, "7B": 7,
	} {
		var s size
		assert.NoError(t, s.Set(text), text)
		assert.Equal(t, want, s, text)
	}
	for _, text := range []string{"", "G", "-1", "1 000", "ten", "1e3", "0x10", "5000000T", "nan", "inf", "20P", "1_000", "20GG"} {
		s := size(3)
		assert.Error(t, s.Set(text), text)
		assert.Equal(t, size(3), s, text)
	}
}
