package hashing

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// text reads a string, writes its canonical text and returns, if asked for, it without quotes and escapes.
func (p *parser) text(wantPlain bool) (plain span, err error) {
	start := p.at
	i, isASCII := skipPlain(p.source, start+1)
	if i >= len(p.source) {
		p.at = i
		return span{}, p.fail("a string does not end")
	}
	switch c := p.source[i]; {
	case c == '\\':
		return p.escapedText(start, i, wantPlain)
	case c != '"':
		p.at = i
		return span{}, p.fail("control character in a string")
	}
	if !isASCII && !utf8.Valid(p.source[start+1:i]) {
		return span{}, p.fail("invalid UTF-8 in a string")
	}
	p.at = i + 1
	return span{start: uint32(start + 1), end: uint32(i)}, nil
}

// skipPlain returns the index of the first quote, backslash or control character in text at or behind the index i,
// or the length of text; and whether all before it is ASCII. It looks at eight bytes at a time.
func skipPlain(text []byte, i int) (end int, isASCII bool) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	seen := uint64(0)
	for ; i+8 <= len(text); i += 8 {
		v := binary.LittleEndian.Uint64(text[i:])
		quote, backslash := v^ones*'"', v^ones*'\\'
		// The lowest high bit that is set marks the first byte that ends the run; those above it may be wrong.
		stop := ((quote-ones)&^quote | (backslash-ones)&^backslash | (v-ones*0x20)&^v) & highs
		if stop != 0 {
			index := bits.TrailingZeros64(stop) &^ 7
			seen |= v & (1<<index - 1)
			return i + index/8, seen&highs == 0
		}
		seen |= v
	}
	for ; i < len(text); i++ {
		if c := text[i]; c == '"' || c == '\\' || c < 0x20 {
			break
		}
		seen |= uint64(text[i])
	}
	return i, seen&highs == 0
}

// escapedText reads a string that has an escape at the index at.
func (p *parser) escapedText(start, at int, wantPlain bool) (plain span, err error) {
	outStart := p.position()
	p.at = at
	p.flush()
	for i := at; ; {
		if i >= len(p.source) {
			p.at = i
			return span{}, p.fail("a string does not end")
		}
		switch c := p.source[i]; {
		case c == '"':
			p.out = append(p.out, '"')
			if !utf8.Valid(p.out[outStart:]) {
				p.at = start
				return span{}, p.fail("invalid UTF-8 in a string")
			}
			p.at = i + 1
			p.drop()
			if wantPlain {
				plain = p.plainText(p.out[outStart+1 : len(p.out)-1])
			}
			return plain, nil
		case c < 0x20:
			p.at = i
			return span{}, p.fail("control character in a string")
		case c != '\\':
			p.out = append(p.out, c)
			i++
		default:
			r, length := unescape(p.source[i:])
			if length == 0 {
				p.at = i
				return span{}, p.fail("invalid escape, or a lone surrogate, in a string")
			}
			p.out = appendEscaped(p.out, r)
			i += length
		}
	}
}

// unescape reads the escape at the start of text. Its length is zero if it is not one, or a lone surrogate.
func unescape(text []byte) (r rune, length int) {
	if len(text) < 2 {
		return 0, 0
	}
	switch text[1] {
	case '"', '\\', '/':
		return rune(text[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r, ok := codeUnit(text)
		switch {
		case !ok:
			return 0, 0
		case !utf16.IsSurrogate(r):
			return r, 6
		}
		low, ok := codeUnit(text[6:])
		if pair := utf16.DecodeRune(r, low); ok && pair != utf8.RuneError {
			return pair, 12
		}
	}
	return 0, 0
}

// codeUnit reads \uXXXX at the start of text.
func codeUnit(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range text[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// appendEscaped writes a character as RFC 8785, section 3.2.2.2, has it.
func appendEscaped(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	if r < 0x20 {
		return append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&0xf])
	}
	return utf8.AppendRune(dst, r)
}

// plainText keeps a canonical text without its escapes.
func (p *parser) plainText(canonical []byte) span {
	start := len(p.own)
	p.own = appendPlain(p.own, canonical)
	return span{start: uint32(start), end: uint32(len(p.own)), own: true}
}

// appendPlain appends a canonical text, given without its quotes, without its escapes.
func appendPlain(dst, canonical []byte) []byte {
	for i := 0; i < len(canonical); {
		if canonical[i] != '\\' {
			dst = append(dst, canonical[i])
			i++
			continue
		}
		r, length := unescape(canonical[i:])
		dst = utf8.AppendRune(dst, r)
		i += length
	}
	return dst
}
