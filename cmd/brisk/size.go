package main

import (
	"strconv"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// size is a flag's number of bytes: digits, and K, M, G or T for powers of 1,024,
// which may be followed by B or iB.
type size int64

func (s *size) String() string { return strconv.FormatInt(int64(*s), 10) }

func (s *size) Type() string { return "size" }

func (s *size) Set(text string) error {
	number := strings.ToUpper(strings.TrimSpace(text))
	for _, end := range []string{"IB", "B"} {
		if cut, ok := strings.CutSuffix(number, end); ok {
			number = cut
			break
		}
	}
	unit := int64(1)
	for i, letter := range "KMGT" {
		if cut, ok := strings.CutSuffix(number, string(letter)); ok {
			number, unit = cut, int64(1)<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n < 0 || n*float64(unit) >= 1<<62 || strings.ContainsAny(number, "XEPIN_+") {
		return fault.New(fault.Invalid, "%q is no size: want one such as 500M or 20G", text)
	}
	*s = size(n * float64(unit))
	return nil
}
