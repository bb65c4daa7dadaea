package middleware

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// KeyFromJSON is the value in the payload at an RFC 6901 pointer, such as "/order/id": the text of a string,
// the digits of an integer, "true" or "false".
//
// What is missing, null or the empty string is ErrNoKey. Anything else cannot be told: an object or array, a
// number with a fraction or an exponent (it has many spellings), a payload that is not JSON, a member on the
// way that stands there twice, a string with the replacement character U+FFFD (somebody has repaired it), an array
// where the pointer has "-" or an index with a leading zero (RFC 6901 knows no such element).
//
// The payload is read once and not copied, and nested at most as deep as encoding/json reads it. Errors do not
// quote it. A pointer that is not one, or that names the whole payload, is refused when the inbox is built.
func KeyFromJSON(pointer string) KeyExtractor {
	tokens, err := parsePointer(pointer)
	return jsonKey{pointer: pointer, tokens: tokens, err: err}
}

type jsonKey struct {
	pointer string
	tokens  []string
	err     error
}

func (k jsonKey) Validate() error { return k.err }

func (k jsonKey) ExtractKey(msg *message.Message) (string, error) {
	if k.err != nil {
		return "", k.err
	}
	value, err := lookUpJSON(msg.Payload, k.tokens)
	if err != nil {
		return "", fmt.Errorf("JSON pointer %q: %w", k.pointer, err)
	}
	key, err := keyOfJSON(value)
	if err != nil {
		return "", fmt.Errorf("JSON pointer %q: %w", k.pointer, err)
	}
	return key, nil
}

func parsePointer(pointer string) ([]string, error) {
	if !strings.HasPrefix(pointer, "/") {
		return nil, fmt.Errorf("JSON pointer %q must begin with a slash and name a member (RFC 6901)", pointer)
	}
	if !utf8.ValidString(pointer) || strings.ContainsRune(pointer, utf8.RuneError) {
		return nil, fmt.Errorf("JSON pointer %q is not valid UTF-8", pointer)
	}
	tokens := strings.Split(pointer[1:], "/")
	for i, token := range tokens {
		if invalidEscape.MatchString(token) {
			return nil, fmt.Errorf("JSON pointer %q has a ~ that is neither ~0 nor ~1 (RFC 6901)", pointer)
		}
		tokens[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
	}
	return tokens, nil
}

var invalidEscape = regexp.MustCompile(`~([^01]|$)`)

// keyOfJSON is the key that a value spells; a nil value is missing.
func keyOfJSON(value []byte) (string, error) {
	if value == nil {
		return "", fmt.Errorf("%w: it is missing", ErrNoKey)
	}
	switch value[0] {
	case 'n':
		return "", fmt.Errorf("%w: it is null", ErrNoKey)
	case 't', 'f':
		return string(value), nil
	case '{', '[':
		return "", errors.New("it is an object or an array; point to a string or an integer in it")
	case '"':
		text, err := textOfJSON(value)
		switch {
		case err != nil:
			return "", err
		case text == "":
			return "", fmt.Errorf("%w: it is the empty string", ErrNoKey)
		case strings.ContainsRune(text, utf8.RuneError):
			return "", errors.New("the string has a character that was replaced because it was invalid")
		}
		return text, nil
	default:
		if !integer.Match(value) {
			return "", errors.New("a number that is not a plain integer has many spellings; send the key as a string")
		}
		return string(value), nil
	}
}

var integer = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

// lookUpJSON returns the value at the path as it stands in payload, or nil if it is missing.
//
// Everything behind the check of the whole payload relies on strict JSON. It makes nothing of the values that it
// passes, so that a large payload costs time but no memory, and it goes down the path in a loop.
func lookUpJSON(payload []byte, path []string) ([]byte, error) {
	// json.Valid accepts strings of invalid UTF-8, which other readers repair, each in its way.
	if !utf8.Valid(payload) || !json.Valid(payload) {
		return nil, errors.New("the payload is not JSON in valid UTF-8")
	}
	value, _ := cutValue(skipSpace(payload))
	for _, token := range path {
		var err error
		switch value[0] {
		case '{':
			value, err = memberOf(value, token)
		case '[':
			value, err = elementOf(value, token)
		default:
			return nil, nil
		}
		if err != nil || value == nil {
			return nil, err
		}
	}
	return value, nil
}

// memberOf reads to the end of the object, so that a second member with the name is seen: readers do
// not agree which of the two counts.
func memberOf(object []byte, name string) ([]byte, error) {
	var found []byte
	for rest := skipSpace(object[1:]); rest[0] != '}'; {
		var quoted, value []byte
		quoted, rest = cutValue(rest)
		value, rest = cutValue(skipSeparator(rest))
		rest = skipSeparator(rest)

		text, err := textOfJSON(quoted)
		if err != nil {
			return nil, err
		}
		if text != name {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("member %q stands there twice", name)
		}
		found = value
	}
	return found, nil
}

func elementOf(array []byte, index string) ([]byte, error) {
	if index == "-" || len(index) > 1 && index[0] == '0' {
		return nil, fmt.Errorf("%q is not the index of an element of an array (RFC 6901)", index)
	}
	wanted, err := strconv.Atoi(index)
	if err != nil || index[0] == '+' {
		return nil, nil
	}
	for i, rest := 0, skipSpace(array[1:]); rest[0] != ']'; i++ {
		var value []byte
		value, rest = cutValue(rest)
		if i == wanted {
			return value, nil
		}
		rest = skipSeparator(rest)
	}
	return nil, nil
}

// cutValue splits text, which begins with a value, behind that value.
func cutValue(text []byte) (value, rest []byte) {
	end := 0
	for depth := 0; ; {
		switch text[end] {
		case '"':
			for end++; text[end] != '"'; end++ {
				if text[end] == '\\' {
					end++
				}
			}
			end++
		case '{', '[':
			depth++
			end++
		case '}', ']':
			depth--
			end++
		default:
			for end++; end < len(text) && !isDelimiter(text[end]); end++ {
			}
		}
		if depth == 0 {
			return text[:end], text[end:]
		}
	}
}

// isDelimiter tells whether a byte ends a number or a word.
func isDelimiter(b byte) bool {
	switch b {
	case ' ', '\t', '\r', '\n', ',', ':', '"', '{', '}', '[', ']':
		return true
	}
	return false
}

func skipSpace(text []byte) []byte {
	return bytes.TrimLeft(text, " \t\r\n")
}

// skipSeparator goes to the next name or value, or to the bracket that ends the container.
func skipSeparator(text []byte) []byte {
	return bytes.TrimLeft(text, " \t\r\n,:")
}

// textOfJSON is the text of a string. A lone surrogate becomes U+FFFD.
func textOfJSON(quoted []byte) (string, error) {
	if !bytes.ContainsRune(quoted, '\\') {
		return string(quoted[1 : len(quoted)-1]), nil
	}
	var text string
	if err := json.Unmarshal(quoted, &text); err != nil {
		return "", errors.New("a string cannot be read as JSON")
	}
	return text, nil
}
