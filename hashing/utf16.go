package hashing

import (
	"cmp"
	"encoding/binary"
)

// compareUTF16 orders two valid UTF-8 texts by their UTF-16 code units (RFC 8785, section 3.2.3). That is the
// order of their bytes, except that a character beyond U+FFFF, whose code units begin with 0xD8 to 0xDB, comes
// before U+E000 to U+FFFF, which begin with the bytes 0xEE and 0xEF in UTF-8.
func compareUTF16(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		switch {
		case x >= 0xF0 && (y == 0xEE || y == 0xEF):
			return -1
		case y >= 0xF0 && (x == 0xEE || x == 0xEF):
			return 1
		default:
			return int(x) - int(y)
		}
	}
	return len(a) - len(b)
}

// sortPrefix is a number of the first eight bytes of a valid UTF-8 text: where two of them differ, they have the
// order of the texts by compareUTF16.
func sortPrefix(text []byte) uint64 {
	prefix := uint64(0)
	if len(text) >= 8 {
		prefix = binary.BigEndian.Uint64(text)
	} else {
		for i, c := range text {
			prefix |= uint64(c) << (56 - 8*i)
		}
	}
	if prefix&0x8080808080808080 == 0 {
		return prefix
	}
	// Not all ASCII: the bytes 0xEE and 0xEF change places with 0xF0 to 0xF4.
	for shift := 0; shift < 64; shift += 8 {
		switch c := byte(prefix >> shift); {
		case c == 0xEE || c == 0xEF:
			prefix += 5 << shift
		case c >= 0xF0:
			prefix -= 2 << shift
		}
	}
	return prefix
}

// compareNames is compareUTF16 for the names of two members.
func (p *parser) compareNames(a, b *member) int {
	if a.prefix != b.prefix {
		return cmp.Compare(a.prefix, b.prefix)
	}
	return compareUTF16(p.bytes(a.name), p.bytes(b.name))
}
