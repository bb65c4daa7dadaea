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
// way that stands there twice, a string with the replacement character U+FFFD (somebody has repaired it).
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

// missing is the value of what is not there, which is different from null.
type missing struct{}

func keyOfJSON(value any) (string, error) {
	switch value := value.(type) {
	case missing:
		return "", fmt.Errorf("%w: it is missing", ErrNoKey)
	case nil:
		return "", fmt.Errorf("%w: it is null", ErrNoKey)
	case bool:
		return strconv.FormatBool(value), nil
	case json.Number:
		if !integer.MatchString(value.String()) {
			return "", errors.New("a number that is not a plain integer has many spellings; send the key as a string")
		}
		return value.String(), nil
	case string:
		if value == "" {
			return "", fmt.Errorf("%w: it is the empty string", ErrNoKey)
		}
		if strings.ContainsRune(value, utf8.RuneError) {
			return "", errors.New("the string has a character that was replaced because it was invalid")
		}
		return value, nil
	default:
		return "", errors.New("it is an object or an array; point to a string or an integer in it")
	}
}

var integer = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

// lookUpJSON returns the scalar at the path, a json.Delim for an object or array, or missing. It looks at the
// whole payload, in linear time and with the nesting limit of encoding/json.
func lookUpJSON(payload []byte, path []string) (any, error) {
	if !utf8.Valid(payload) || !json.Valid(payload) {
		return nil, errors.New("the payload is not JSON in valid UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	return lookUpValue(decoder, path)
}

func lookUpValue(decoder *json.Decoder, path []string) (any, error) {
	if len(path) > 0 {
		switch token, err := decoder.Token(); {
		case err != nil:
			return nil, errors.New("the payload cannot be read as JSON")
		case token == json.Delim('{'):
			return lookUpMember(decoder, path)
		case token == json.Delim('['):
			return lookUpElement(decoder, path)
		default:
			return missing{}, nil
		}
	}
	var value json.RawMessage
	if err := decoder.Decode(&value); err != nil {
		return nil, errors.New("the payload cannot be read as JSON")
	}
	if value[0] == '{' || value[0] == '[' {
		return json.Delim(value[0]), nil
	}
	scalar := json.NewDecoder(bytes.NewReader(value))
	scalar.UseNumber()
	return scalar.Token()
}

// lookUpMember reads to the end of the object, so that a second member with the name is seen: readers do
// not agree which of the two counts.
func lookUpMember(decoder *json.Decoder, path []string) (any, error) {
	var found any = missing{}
	seen := false
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, errors.New("the payload cannot be read as JSON")
		}
		if name != path[0] {
			if err := skipValue(decoder); err != nil {
				return nil, err
			}
			continue
		}
		if seen {
			return nil, fmt.Errorf("member %q stands there twice", path[0])
		}
		seen = true
		if found, err = lookUpValue(decoder, path[1:]); err != nil {
			return nil, err
		}
	}
	_, err := decoder.Token()
	return found, err
}

func lookUpElement(decoder *json.Decoder, path []string) (any, error) {
	var found any = missing{}
	for i := 0; decoder.More(); i++ {
		if strconv.Itoa(i) != path[0] {
			if err := skipValue(decoder); err != nil {
				return nil, err
			}
			continue
		}
		var err error
		if found, err = lookUpValue(decoder, path[1:]); err != nil {
			return nil, err
		}
	}
	_, err := decoder.Token()
	return found, err
}

func skipValue(decoder *json.Decoder) error {
	var skipped json.RawMessage
	if err := decoder.Decode(&skipped); err != nil {
		return errors.New("the payload cannot be read as JSON")
	}
	return nil
}
