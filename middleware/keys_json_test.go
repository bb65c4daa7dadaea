package middleware

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Not parallel: it looks at what the whole process allocates.
func TestKeyFromJSONMakesNothingOfWhatItPasses(t *testing.T) {
	for reason, text := range map[string]string{
		"a million elements before it": `{"x":[` + strings.Repeat("1,", 1<<20) + `1],"id":"o-1"}`,
		"a million members before it":  `{` + strings.Repeat(`"k":1,`, 1<<20) + `"id":"o-1"}`,
		"a string of 4 MB behind it":   `{"id":"o-1","x":"` + strings.Repeat("x", 4<<20) + `"}`,
		"objects of 4 MB behind it":    `{"id":"o-1","x":[` + strings.Repeat(`{"a":{}},`, 1<<18) + `{}]}`,
	} {
		extractor := KeyFromJSON("/id")
		msg := message.NewMessage("", []byte(text))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		key, err := extractor.ExtractKey(msg)
		runtime.ReadMemStats(&after)
		require.NoError(t, err, reason)
		require.Equal(t, "o-1", key, reason)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100_000), reason)
	}
}

// FuzzKeyFromJSON claims of every payload and pointer: there is one answer, which is a key or an error; a key is what
// encoding/json reads at that place; the same JSON with other white space, other escapes and its members in another
// order has the same key.
func FuzzKeyFromJSON(f *testing.F) {
	for _, seed := range []string{
		`{"id":"o-1"}`, `{"id":1,"id":2}`, `{"id":null}`, `[[[`, `{"id":"\ud83d"}`, `{"a":{"id":1e3}}`, "\xff",
		`{"z":["}",{"id":1}],"\u0069d":"\u00e9<>\"\\"}`, ` { "id" : -70 , "a" : [ ] } `,
	} {
		f.Add([]byte(seed), "/id")
	}
	f.Add([]byte(`{"a":[{"b":"x"},{"b~/":"y"}]}`), "/a/1/b~0~1")
	f.Add([]byte(`[{},[true]]`), "/1/0")
	f.Fuzz(func(t *testing.T, payload []byte, pointer string) {
		extractor := KeyFromJSON(pointer)
		before := bytes.Clone(payload)
		key, err := extractor.ExtractKey(message.NewMessage("", payload))
		again, errAgain := extractor.ExtractKey(message.NewMessage("", payload))
		if key != again || (err == nil) != (errAgain == nil) {
			t.Fatalf("two answers for one message: %q %v, %q %v", key, err, again, errAgain)
		}
		if !bytes.Equal(payload, before) {
			t.Fatal("the payload has been changed")
		}
		if (err == nil) != (key != "") {
			t.Fatalf("neither a key nor an error, or both: %q, %v", key, err)
		}
		if err == nil {
			requireStorableOrRefused(t, key)
			if want := walk(t, payload, pointer); key != want {
				t.Fatalf("the key is %q, and encoding/json reads %q", key, want)
			}
		}
		if err != nil && !errors.Is(err, ErrNoKey) {
			return // Where it cannot be told, another spelling may be clear: sorting drops a second member.
		}
		for _, spelling := range respell(t, payload) {
			other, errOther := extractor.ExtractKey(message.NewMessage("", spelling))
			if other != key || errors.Is(errOther, ErrNoKey) != errors.Is(err, ErrNoKey) {
				t.Fatalf("%q has %q %v, and its other spelling %q has %q %v", payload, key, err, spelling, other, errOther)
			}
		}
	})
}

// walk is the value at the pointer as encoding/json reads the document.
func walk(t *testing.T, document []byte, pointer string) string {
	t.Helper()
	value := decode(t, document)
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch container := value.(type) {
		case map[string]any:
			value = container[token]
		case []any:
			index, err := strconv.Atoi(token)
			require.NoError(t, err)
			value = container[index]
		}
	}
	switch value := value.(type) {
	case string:
		return value
	case json.Number:
		return value.String()
	case bool:
		return strconv.FormatBool(value)
	default:
		t.Fatalf("there is a %T at %q of %q", value, pointer, document)
		return ""
	}
}

func decode(t *testing.T, document []byte) (value any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&value))
	return value
}

// respell writes a JSON document with other white space, and with its members sorted and other escapes.
func respell(t *testing.T, document []byte) [][]byte {
	t.Helper()
	var indented bytes.Buffer
	require.NoError(t, json.Indent(&indented, document, "\r\t ", ""))
	sorted, err := json.Marshal(decode(t, document))
	require.NoError(t, err)
	return [][]byte{indented.Bytes(), sorted}
}
