package hashing

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
