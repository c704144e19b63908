package store

import "strings"

// A record's name becomes part of an object's key. Letters, digits and -_@ stay as
// they are, as does a dot that is not the first of a component; other bytes are %XX. What is
// longer than a file name may be goes on in a directory below: a component of
// namePart characters that ends in ~ is continued by the next. No name's file is
// another's directory then.
const (
	namePart = 200
	nameMore = "~"
)

func plainInName(c byte, first bool) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '@':
		return true
	}
	return c == '.' && !first
}

func escapeName(name string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; plainInName(c, b.Len()%(namePart-1) == 0) {
			b.WriteByte(c)
		} else {
			b.WriteString("%" + string(digits[c>>4]) + string(digits[c&15]))
		}
	}
	return b.String()
}

func unescapeName(text string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '%' {
			b.WriteByte(c)
			continue
		}
		if i+2 >= len(text) {
			return "", false
		}
		hi, lo := strings.IndexByte("0123456789ABCDEF", text[i+1]), strings.IndexByte("0123456789ABCDEF", text[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	name := b.String()
	return name, escapeName(name) == text
}

func splitName(text string) string {
	var b strings.Builder
	for len(text) > namePart {
		b.WriteString(text[:namePart-1] + nameMore + "/")
		text = text[namePart-1:]
	}
	return b.String() + text
}

func joinName(text string) (string, bool) {
	var b strings.Builder
	rest := text
	for {
		part, more, found := strings.Cut(rest, "/")
		if !found {
			b.WriteString(part)
			break
		}
		if len(part) != namePart || !strings.HasSuffix(part, nameMore) {
			return "", false
		}
		b.WriteString(strings.TrimSuffix(part, nameMore))
		rest = more
	}
	return b.String(), splitName(b.String()) == text
}
