package hashing_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

// decimal is digits * 10^exponent, with no zero at either end of the digits.
type decimal struct {
	negative bool
	digits   string
	exponent int
}

type (
	object []memberOf
	array  []any
	null   struct{}
)

type memberOf struct {
	name  string
	value any
}

var alphabet = []string{"a", "b", "é", "😂", "\ufb33", "\u2028", "/", "\\", "\"", "\n", "\x00", "\x1f", "\x7f", "~", "*", "0", " ", "e\u0301"}

func randomText(r *rand.Rand) string {
	var text strings.Builder
	for range r.IntN(4) {
		text.WriteString(alphabet[r.IntN(len(alphabet))])
	}
	return text.String()
}

func randomDecimal(r *rand.Rand) decimal {
	var digits strings.Builder
	for range 1 + r.IntN(1<<r.IntN(5)) {
		digits.WriteByte(byte('0' + r.IntN(10)))
	}
	text := strings.Trim(digits.String(), "0")
	if text == "" {
		return decimal{digits: "0"}
	}
	return decimal{negative: r.IntN(2) == 0, digits: text, exponent: r.IntN(60) - 30}
}

func randomValue(r *rand.Rand, depth int) any {
	kinds := 7
	if depth == 0 {
		kinds = 5
	}
	switch r.IntN(kinds) {
	case 0:
		return null{}
	case 1:
		return r.IntN(2) == 0
	case 2, 3:
		return randomDecimal(r)
	case 4:
		return randomText(r)
	case 5:
		elements := array{}
		for range r.IntN(4) {
			elements = append(elements, randomValue(r, depth-1))
		}
		return elements
	default:
		members := object{}
		names := map[string]bool{}
		for range r.IntN(5) {
			name := randomText(r)
			if !names[name] {
				names[name] = true
				members = append(members, memberOf{name, randomValue(r, depth-1)})
			}
		}
		return members
	}
}

// spell writes a value in one of its many spellings.
func spell(r *rand.Rand, to *strings.Builder, value any) {
	space(r, to)
	switch value := value.(type) {
	case null:
		to.WriteString("null")
	case bool:
		to.WriteString(strconv.FormatBool(value))
	case decimal:
		spellDecimal(r, to, value)
	case string:
		spellText(r, to, value)
	case array:
		to.WriteByte('[')
		for i, element := range value {
			if i > 0 {
				to.WriteByte(',')
			}
			spell(r, to, element)
		}
		to.WriteByte(']')
	case object:
		to.WriteByte('{')
		for i, at := range r.Perm(len(value)) {
			if i > 0 {
				to.WriteByte(',')
			}
			space(r, to)
			spellText(r, to, value[at].name)
			space(r, to)
			to.WriteByte(':')
			spell(r, to, value[at].value)
		}
		to.WriteByte('}')
	}
	space(r, to)
}

func space(r *rand.Rand, to *strings.Builder) {
	if r.IntN(4) == 0 {
		to.WriteString([]string{" ", "\t", "\n", "\r\n  "}[r.IntN(4)])
	}
}

func spellText(r *rand.Rand, to *strings.Builder, text string) {
	short := map[rune]string{'"': `\"`, '\\': `\\`, '/': `\/`, '\n': `\n`, '\b': `\b`, '\f': `\f`, '\r': `\r`, '\t': `\t`}
	to.WriteByte('"')
	for _, c := range text {
		escape, hasShort := short[c]
		mustEscape := c < 0x20 || c == '"' || c == '\\'
		switch choice := r.IntN(3); {
		case hasShort && choice == 0, mustEscape && hasShort && choice == 1:
			to.WriteString(escape)
		case mustEscape || choice == 2:
			format := []string{`\u%04x`, `\u%04X`}[r.IntN(2)]
			for _, unit := range utf16.Encode([]rune{c}) {
				fmt.Fprintf(to, format, unit)
			}
		default:
			to.WriteRune(c)
		}
	}
	to.WriteByte('"')
}

func spellDecimal(r *rand.Rand, to *strings.Builder, d decimal) {
	if d.negative || d.digits == "0" && r.IntN(2) == 0 {
		to.WriteByte('-')
	}
	// The point goes anywhere among zeros and digits; the exponent makes up for it.
	digits := strings.Repeat("0", r.IntN(3)) + d.digits + strings.Repeat("0", r.IntN(3))
	trailing := len(digits) - len(strings.TrimRight(digits, "0"))
	if d.digits == "0" {
		trailing = 0
	}
	point := 1 + r.IntN(len(digits))
	exponent := d.exponent - trailing + len(digits) - point

	whole, fraction := digits[:point], digits[point:]
	whole = strings.TrimLeft(whole, "0")
	if whole == "" {
		whole = "0"
	}
	to.WriteString(whole)
	if fraction != "" {
		to.WriteString("." + fraction)
	}
	if exponent != 0 || r.IntN(3) == 0 {
		to.WriteByte("eE"[r.IntN(2)])
		switch {
		case exponent < 0:
			to.WriteByte('-')
		case r.IntN(2) == 0:
			to.WriteByte('+')
		}
		to.WriteString(strings.Repeat("0", r.IntN(3)) + strconv.Itoa(max(exponent, -exponent)))
	}
}

// mutate changes one thing of a value, and reports whether it could.
func mutate(r *rand.Rand, value any) (any, bool) {
	switch value := value.(type) {
	case null:
		return []any{false, "", array{}, object{}, decimal{digits: "0"}, "null"}[r.IntN(6)], true
	case bool:
		return []any{!value, null{}, strconv.FormatBool(value)}[r.IntN(3)], true
	case decimal:
		switch changed := value; r.IntN(4) {
		case 0:
			changed.exponent++
			return changed, value.digits != "0"
		case 1:
			changed.negative = !changed.negative
			return changed, value.digits != "0"
		case 2:
			changed.digits += "1"
			return changed, value.digits != "0"
		default:
			return null{}, true
		}
	case string:
		switch r.IntN(3) {
		case 0:
			return value + "a", true
		case 1:
			return array{value}, true
		default:
			return "\x00" + value, true
		}
	case array:
		if len(value) == 0 {
			return []any{object{}, array{null{}}, ""}[r.IntN(3)], true
		}
		changed := append(array{}, value...)
		at := r.IntN(len(value))
		switch r.IntN(3) {
		case 0:
			return append(changed[:at], changed[at+1:]...), true
		case 1:
			return append(changed, null{}), true
		default:
			element, ok := mutate(r, value[at])
			changed[at] = element
			return changed, ok
		}
	default:
		members := value.(object)
		if len(members) == 0 {
			return []any{array{}, object{{"a", null{}}}, null{}}[r.IntN(3)], true
		}
		changed := append(object{}, members...)
		at := r.IntN(len(members))
		switch r.IntN(4) {
		case 0:
			return append(changed[:at], changed[at+1:]...), true
		case 1:
			return append(changed, memberOf{"added", null{}}), true
		case 2:
			changed[at].name += "x"
			for i, m := range changed {
				if i != at && m.name == changed[at].name {
					return value, false
				}
			}
			return changed, true
		default:
			member, ok := mutate(r, members[at].value)
			changed[at].value = member
			return changed, ok
		}
	}
}

const properties = 100_000

func spelled(r *rand.Rand, value any) []byte {
	var text strings.Builder
	spell(r, &text, value)
	return []byte(text.String())
}

func TestEveryRespellingOfAValueIsEqual(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	hasher := newHasher(t, hashing.Strict())
	for range properties {
		value := randomValue(r, 3)
		a, b := spelled(r, value), spelled(r, value)
		if hashOf(t, hasher, a) != hashOf(t, hasher, b) {
			t.Fatalf("seed %d: two spellings of one value differ:\n%s\n%s", seed, a, b)
		}
	}
}

func TestEveryChangeOfAValueIsDifferent(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	hasher := newHasher(t, hashing.Strict())
	for mutations := 0; mutations < properties; {
		value := randomValue(r, 3)
		changed, ok := mutate(r, value)
		if !ok {
			continue
		}
		mutations++
		a, b := spelled(r, value), spelled(r, changed)
		if hashOf(t, hasher, a) == hashOf(t, hasher, b) {
			t.Fatalf("seed %d: two values are equal:\n%s\n%s", seed, a, b)
		}
	}
}

func TestExactNumbersTellApartAllThatFloat64DoesAndMore(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 3))
	exact, rounding := newHasher(t), newHasher(t, hashing.Numbers(hashing.Float64))
	equalInExact := 0
	for range properties / 4 {
		a, b := randomDecimal(r), randomDecimal(r)
		if r.IntN(2) == 0 {
			b = a
			b.exponent += 400 * r.IntN(2)
		}
		textA, textB := spelled(r, a), spelled(r, b)
		if hashOf(t, exact, textA) != hashOf(t, exact, textB) {
			continue
		}
		equalInExact++
		if hashOf(t, rounding, textA) != hashOf(t, rounding, textB) {
			t.Fatalf("seed %d: equal as decimals, different as float64: %s and %s", seed, textA, textB)
		}
	}
	require.Positive(t, equalInExact)
	require.Equal(t, hashOf(t, rounding, []byte("9007199254740993")), hashOf(t, rounding, []byte("9007199254740992")))
	require.Equal(t, hashOf(t, rounding, []byte("1e400")), hashOf(t, rounding, []byte("10e399")))
	require.NotEqual(t, hashOf(t, rounding, []byte("1e400")), hashOf(t, rounding, []byte("1e401")))
}
