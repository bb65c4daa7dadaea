package hashing

import (
	"math"
	"strconv"
)

// maxExponent limits the decimal exponent of a number written with one digit before the point. It binds the
// value and not the spelling, or equal numbers would be split.
const maxExponent = 999_999_999_999_999

// number reads a number and writes its canonical text.
func (p *parser) number() error {
	start := p.at
	if p.peek() == '-' {
		p.at++
	}
	first := p.at
	switch c := p.peek(); {
	case c == '0':
		p.at++
	case c >= '1' && c <= '9':
		p.digits()
	default:
		return p.fail("not a JSON value")
	}
	integer := p.source[first:p.at]
	// Of the common numbers, most are their own canonical text.
	isCanonical := len(integer) <= 21 && p.numbers == Exact && (first == start || integer[0] != '0')
	if p.peek() == '.' {
		p.at++
		if !p.digits() {
			return p.fail("no digit after the point of a number")
		}
		isCanonical = isCanonical && integer[0] != '0' && p.source[p.at-1] != '0'
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		isCanonical = false
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			return p.fail("no digit in the exponent of a number")
		}
	}
	if isCanonical {
		return nil
	}

	end := p.at
	p.at = start
	p.flush()
	out, ok := appendNumber(p.out, p.source[start:end], p.numbers)
	if !ok {
		return p.fail("exponent of a number beyond 999,999,999,999,999")
	}
	p.out, p.at = out, end
	p.drop()
	return nil
}

func (p *parser) digits() bool {
	start := p.at
	for p.at < len(p.source) && p.source[p.at] >= '0' && p.source[p.at] <= '9' {
		p.at++
	}
	return p.at > start
}

// appendNumber appends the canonical text of a JSON number, which must be valid, or reports false if its
// exponent is beyond the limit. It is linear in the text: an exponent is never expanded.
func appendNumber(dst, number []byte, mode NumberMode) ([]byte, bool) {
	if mode == Float64 {
		if f, err := strconv.ParseFloat(string(number), 64); err == nil && !math.IsInf(f, 0) {
			var buf [32]byte
			number = strconv.AppendFloat(buf[:0], f, 'e', -1, 64)
		}
	}
	return appendDecimal(dst, number)
}

// appendDecimal takes a number apart into its significant digits d1 d2 ... dk and the position n of the point,
// so that the value is 0.d1d2...dk * 10^n, and lays these out.
func appendDecimal(dst, number []byte) ([]byte, bool) {
	negative := number[0] == '-'
	if negative {
		number = number[1:]
	}
	mantissaEnd := len(number)
	for i, c := range number {
		if c == 'e' || c == 'E' {
			mantissaEnd = i
			break
		}
	}
	exponent := int64(0)
	if mantissaEnd < len(number) {
		exponent = parseExponent(number[mantissaEnd+1:])
	}
	mantissa := number[:mantissaEnd]
	point := len(mantissa)
	for i, c := range mantissa {
		if c == '.' {
			point = i
			break
		}
	}

	first, last := -1, -1 // of the digits that are not zero
	for i, c := range mantissa {
		if c != '0' && c != '.' {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first < 0 {
		return append(dst, '0'), true
	}

	n := int64(point - first)
	if first > point {
		n++ // the point itself stands between
	}
	n += exponent
	if n-1 > maxExponent || n-1 < -maxExponent {
		return dst, false
	}
	if negative {
		dst = append(dst, '-')
	}
	significant := digitsOf{text: mantissa[first : last+1], point: point - first}
	return appendLayout(dst, significant, n), true
}

// parseExponent reads a valid exponent and stops at a value that no mantissa can bring back into the limit.
func parseExponent(text []byte) int64 {
	negative := text[0] == '-'
	if text[0] == '-' || text[0] == '+' {
		text = text[1:]
	}
	value := int64(0)
	for _, c := range text {
		value = value*10 + int64(c-'0')
		if value > 1e17 {
			value = 1e17
			break
		}
	}
	if negative {
		return -value
	}
	return value
}

// digitsOf are significant digits as they stand in a number, possibly with the point among them.
type digitsOf struct {
	text  []byte
	point int // index of the point in text; not in it if negative or too large
}

func (d digitsOf) hasPoint() bool { return d.point >= 0 && d.point < len(d.text) }

func (d digitsOf) len() int {
	if d.hasPoint() {
		return len(d.text) - 1
	}
	return len(d.text)
}

// appendTo appends the digits from index from to index to, the point not counted.
func (d digitsOf) appendTo(dst []byte, from, to int) []byte {
	if !d.hasPoint() {
		return append(dst, d.text[from:to]...)
	}
	if from < d.point {
		dst = append(dst, d.text[from:min(to, d.point)]...)
	}
	if to > d.point {
		dst = append(dst, d.text[max(from, d.point)+1:to+1]...)
	}
	return dst
}

// appendLayout is Number::toString of ECMAScript (ECMA-262, section 6.1.6.1.20) from its step 6 on, with k digits
// and n as there.
func appendLayout(dst []byte, digits digitsOf, n int64) []byte {
	k := digits.len()
	switch {
	case int64(k) <= n && n <= 21:
		dst = digits.appendTo(dst, 0, k)
		for range n - int64(k) {
			dst = append(dst, '0')
		}
		return dst
	case 0 < n && n <= 21:
		dst = digits.appendTo(dst, 0, int(n))
		dst = append(dst, '.')
		return digits.appendTo(dst, int(n), k)
	case -6 < n && n <= 0:
		dst = append(dst, '0', '.')
		for range -n {
			dst = append(dst, '0')
		}
		return digits.appendTo(dst, 0, k)
	}
	dst = digits.appendTo(dst, 0, 1)
	if k > 1 {
		dst = append(dst, '.')
		dst = digits.appendTo(dst, 1, k)
	}
	dst = append(dst, 'e')
	if n-1 > 0 {
		dst = append(dst, '+')
	}
	return strconv.AppendInt(dst, n-1, 10)
}
