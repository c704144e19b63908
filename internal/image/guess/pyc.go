package guess

import (
	"encoding/binary"
	"errors"
)

// importOf is one import statement of a module's own code, not of its functions.
type importOf struct {
	name       string // may be empty if level is not 0
	level      int    // number of leading dots
	attributes []string
}

// pycFormat says how a version of Python compiles.
type pycFormat struct {
	locals                         bool // code objects before 3.11 count their locals, and list names of three kinds
	loadConst, importName, extArgs byte
}

// pycFormats are those of the versions that we know, by the magic number that their
// files begin with: CPython 3.8 to 3.13. Others are named, but not looked into.
var pycFormats = map[uint16]pycFormat{
	3413: {true, 100, 108, 144},
	3425: {true, 100, 108, 144},
	3439: {true, 100, 108, 144},
	3495: {false, 100, 108, 144},
	3531: {false, 100, 108, 144},
	3571: {false, 83, 75, 71},
}

// compiledImports gives the imports that happen when a compiled file is imported.
// What it does not understand has none.
func compiledImports(b []byte) []importOf {
	const header = 16
	if len(b) < header {
		return nil
	}
	format, ok := pycFormats[binary.LittleEndian.Uint16(b)]
	if !ok {
		return nil
	}
	m := &marshal{format: format, rest: b[header:], work: len(b)}
	v, err := m.value(0)
	if err != nil {
		return nil
	}
	code, ok := v.(*pycode)
	if !ok {
		return nil
	}
	return code.imports(format)
}

// pycode is what we need of a code object.
type pycode struct {
	code          []byte
	consts, names []any
}

func (c *pycode) imports(f pycFormat) (l []importOf) {
	arg := 0
	var before, last any // constants, as they were pushed
	for i := 0; i+1 < len(c.code); i += 2 {
		arg = arg<<8 | int(c.code[i+1])
		switch c.code[i] {
		case f.extArgs:
			arg &= 0xffffff
			continue
		case f.loadConst:
			if arg < len(c.consts) {
				before, last = last, c.consts[arg]
			}
		case f.importName:
			level, _ := before.(int)
			if arg < len(c.names) && level >= 0 && level < 16 {
				name, _ := c.names[arg].(string)
				in := importOf{name: name, level: level}
				if from, ok := last.([]any); ok {
					for _, a := range from {
						if s, ok := a.(string); ok {
							in.attributes = append(in.attributes, s)
						}
					}
				}
				l = append(l, in)
			}
		}
		arg = 0
	}
	return l
}

// marshal reads Python's serialisation of constants and code.
type marshal struct {
	format pycFormat
	rest   []byte
	refs   []any
	work   int // values that may still come: each takes a byte at least
}

var errMarshal = errors.New("not what Python writes")

func (m *marshal) take(n int) ([]byte, error) {
	if n < 0 || n > len(m.rest) {
		return nil, errMarshal
	}
	b := m.rest[:n]
	m.rest = m.rest[n:]
	return b, nil
}

func (m *marshal) int() (int, error) {
	b, err := m.take(4)
	if err != nil {
		return 0, err
	}
	return int(int32(binary.LittleEndian.Uint32(b))), nil
}

func (m *marshal) text(n int, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	b, err := m.take(n)
	return string(b), err
}

func (m *marshal) short() (int, error) {
	b, err := m.take(1)
	if err != nil {
		return 0, err
	}
	return int(b[0]), nil
}

func (m *marshal) skip(n int) (any, error) {
	_, err := m.take(n)
	return nil, err
}

// value reads one value: strings, small integers, tuples, bytes and code as
// themselves, everything else as nil.
func (m *marshal) value(depth int) (any, error) {
	const deepest = 200
	if m.work--; m.work < 0 || depth > deepest {
		return nil, errMarshal
	}
	b, err := m.take(1)
	if err != nil {
		return nil, err
	}
	kind := b[0] &^ 0x80
	slot := -1
	if b[0]&0x80 != 0 {
		slot = len(m.refs)
		m.refs = append(m.refs, nil)
	}
	v, err := m.content(kind, depth)
	if err == nil && slot >= 0 {
		m.refs[slot] = v
	}
	return v, err
}

func (m *marshal) content(kind byte, depth int) (any, error) {
	switch kind {
	case '0', 'N', 'F', 'T', 'S', '.':
		return nil, nil
	case 'i':
		return m.int()
	case 'I', 'g':
		return m.skip(8)
	case 'y':
		return m.skip(16)
	case 'f', 'x':
		n, err := m.short()
		if err != nil {
			return nil, err
		}
		if _, err := m.take(n); err != nil || kind == 'f' {
			return nil, err
		}
		if n, err = m.short(); err != nil {
			return nil, err
		}
		return m.skip(n)
	case 'l':
		n, err := m.int()
		if err != nil {
			return nil, err
		}
		return m.skip(2 * max(n, -n))
	case 's':
		n, err := m.int()
		if err != nil {
			return nil, err
		}
		return m.take(n)
	case 't', 'u', 'a', 'A':
		return m.text(m.int())
	case 'z', 'Z':
		return m.text(m.short())
	case 'r':
		n, err := m.int()
		if err != nil || n < 0 || n >= len(m.refs) {
			return nil, errMarshal
		}
		return m.refs[n], nil
	case ')':
		n, err := m.short()
		return m.list(n, err, depth)
	case '(', '[', '<', '>':
		n, err := m.int()
		return m.list(n, err, depth)
	case '{':
		for {
			if len(m.rest) > 0 && m.rest[0] == '0' {
				return m.skip(1)
			}
			if _, err := m.value(depth + 1); err != nil {
				return nil, err
			}
		}
	case 'c':
		return m.code(depth)
	}
	return nil, errMarshal
}

func (m *marshal) list(n int, err error, depth int) (any, error) {
	if err != nil || n < 0 || n > m.work {
		return nil, errMarshal
	}
	l := make([]any, n)
	for i := range l {
		if l[i], err = m.value(depth + 1); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (m *marshal) code(depth int) (any, error) {
	ints, tables := 5, 2 // argcounts, stack size, flags; and the tables of lines and exceptions
	if m.format.locals {
		ints, tables = 6, 1
	}
	if _, err := m.take(4 * ints); err != nil {
		return nil, err
	}
	code, err := m.value(depth + 1)
	if err != nil {
		return nil, err
	}
	consts, err := m.value(depth + 1)
	if err != nil {
		return nil, err
	}
	names, err := m.value(depth + 1)
	if err != nil {
		return nil, err
	}
	for range 5 { // locals, file, name
		if _, err := m.value(depth + 1); err != nil {
			return nil, err
		}
	}
	if _, err := m.take(4); err != nil { // first line
		return nil, err
	}
	for range tables {
		if _, err := m.value(depth + 1); err != nil {
			return nil, err
		}
	}
	c := &pycode{}
	c.code, _ = code.([]byte)
	c.consts, _ = consts.([]any)
	c.names, _ = names.([]any)
	return c, nil
}
