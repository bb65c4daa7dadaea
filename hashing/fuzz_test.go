package hashing

import (
	"bytes"
	"encoding/json"
	"math/big"
	"reflect"
	"strings"
	"testing"
)

// FuzzCanonical claims of every strict JSON document: its canonical form is valid JSON for encoding/json, has the same
// value, and is its own canonical form.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`{"b":1,"a":{"d":[],"c":null}}`, `[1e999,-0,0.10,1E+2,"\ud83d\ude02\u0000/"]`, `{"\u0061":1,"a":2}`, `"\ud800"`,
		"\xff", `1e99999999999999999999`, `{"😂":1,"דּ":2}`, ` [ true , false ] `, `[[[[`, `{"a":1}x`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		var p parser
		if err := p.parse(document, nil, false); err != nil {
			return
		}
		canonical := p.appendCanonical(nil)
		if !json.Valid(canonical) {
			t.Fatalf("canonical form %q of %q is not JSON", canonical, document)
		}
		if err := p.parse(canonical, nil, false); err != nil {
			t.Fatalf("canonical form %q of %q is refused: %v", canonical, document, err)
		}
		if again := p.appendCanonical(nil); !bytes.Equal(canonical, again) {
			t.Fatalf("%q has canonical form %q, and that %q", document, canonical, again)
		}
		if before, after := valueOf(t, document), valueOf(t, canonical); !reflect.DeepEqual(before, after) {
			t.Fatalf("%q and its canonical form %q have different values", document, canonical)
		}
	})
}

// valueOf is the value as encoding/json reads it, with numbers as exact fractions where they are not too large to be
// written out.
func valueOf(t *testing.T, document []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", document, err)
	}
	return exact(value)
}

func exact(value any) any {
	switch value := value.(type) {
	case json.Number:
		canonical, ok := appendDecimal(nil, []byte(value))
		if !ok {
			return "beyond the limit"
		}
		if i := bytes.IndexByte(canonical, 'e'); i >= 0 && len(canonical)-i > 5 {
			return string(canonical) // a fraction of it would fill the memory
		}
		if string(canonical) == "0" {
			return "0" // big.Rat refuses large exponents, also of zero
		}
		fraction, ok := new(big.Rat).SetString(value.String())
		if !ok {
			return value
		}
		return fraction.RatString()
	case []any:
		for i := range value {
			value[i] = exact(value[i])
		}
		return value
	case map[string]any:
		for name := range value {
			value[name] = exact(value[name])
		}
		return value
	default:
		return value
	}
}

// FuzzExclude claims that what is excluded never shows, and that it never makes an invalid document valid.
func FuzzExclude(f *testing.F) {
	f.Add([]byte(`{"a":{"secret":1,"b":[{"secret":2}]},"secret":3}`), "/secret")
	f.Add([]byte(`{"v":[1,2,3],"w":{"0":1}}`), "/v/0")
	f.Add([]byte(`{"*":1,"x":1}`), "/~2")
	f.Fuzz(func(t *testing.T, document []byte, pattern string) {
		tokens, err := parsePattern(pattern)
		if err != nil {
			return
		}
		var whole, part parser
		errWhole := whole.parse(document, nil, false)
		errPart := part.parse(document, newPattern([][]*string{tokens}), false)
		if (errWhole == nil) != (errPart == nil) {
			t.Fatalf("%q is %v, and without %q %v", document, errWhole, pattern, errPart)
		}
		if errPart != nil {
			return
		}
		without := part.appendCanonical(nil)
		if err := whole.parse(without, newPattern([][]*string{tokens}), false); err != nil {
			t.Fatalf("%q without %q is %q, which is refused: %v", document, pattern, without, err)
		}
		if again := whole.appendCanonical(nil); !bytes.Equal(without, again) {
			t.Fatalf("%q without %q is %q, and then %q", document, pattern, without, again)
		}
	})
}

// FuzzNumber claims that a number's canonical text is the same decimal, and that of RFC 8785 where a float64 prints
// as the number.
func FuzzNumber(f *testing.F) {
	for _, seed := range []string{"0", "-0", "1.0", "100", "1e21", "0.000001", "1e-7", "12.50e-3", "9007199254740993", "1e400", "0.1e1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, number string) {
		if !json.Valid([]byte(number)) || strings.Trim(number, "-+.eE0123456789") != "" {
			return
		}
		canonical, ok := appendNumber(nil, []byte(number), Exact)
		if !ok {
			return
		}
		if a, b := exact(json.Number(number)), exact(json.Number(canonical)); a != b {
			t.Fatalf("%s becomes %s, another decimal", number, canonical)
		}
		rounded, ok := appendNumber(nil, []byte(number), Float64)
		if !ok {
			t.Fatalf("%s is a number in exact mode only", number)
		}
		var f float64
		if json.Unmarshal([]byte(number), &f) != nil {
			return
		}
		if exactly, ok := new(big.Rat).SetString(string(rounded)); ok && len(rounded) < 25 {
			if other, _ := new(big.Rat).SetString(number); other != nil && len(number) < 25 && exactly.Cmp(other) == 0 && string(canonical) != string(rounded) {
				t.Fatalf("%s is what its float64 prints as, but is %s and not %s", number, canonical, rounded)
			}
		}
	})
}
