package middleware

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrNoKey means that a message does not have what a KeyExtractor looks for: it is missing, null or empty.
var ErrNoKey = errors.New("no key")

// KeyExtractor finds a key, or another short text, in a message.
//
// An extractor is safe for concurrent use, neither keeps nor changes the message, and gives the same
// answer for every delivery of one message. If it has a method Validate() error, NewInbox calls it once and
// refuses the configuration on an error.
type KeyExtractor interface {
	// ExtractKey returns an error that wraps ErrNoKey when the message does not have the key, and
	// another error when it cannot tell.
	ExtractKey(msg *message.Message) (string, error)
}

// KeyFunc makes a KeyExtractor of a function.
type KeyFunc func(msg *message.Message) (string, error)

// ExtractKey calls f.
func (f KeyFunc) ExtractKey(msg *message.Message) (string, error) {
	return f(msg)
}

// Validate refuses a nil f, which would panic at the first message.
func (f KeyFunc) Validate() error {
	if f == nil {
		return errors.New("KeyFunc is nil")
	}
	return nil
}

// KeyFromUUID is the message's UUID. An empty one is ErrNoKey.
var KeyFromUUID KeyExtractor = KeyFunc(func(msg *message.Message) (string, error) {
	if msg.UUID == "" {
		return "", fmt.Errorf("%w: the message has no UUID; configure a Key that the producer sets", ErrNoKey)
	}
	return msg.UUID, nil
})

// ConstantKey is always text. Alone it identifies nothing; in JoinKeys it names the action. A text that could not be
// stored as a key is refused when the inbox is built.
func ConstantKey(text string) KeyExtractor {
	return constantKey(text)
}

type constantKey string

func (k constantKey) ExtractKey(*message.Message) (string, error) {
	return string(k), nil
}

func (k constantKey) Validate() error {
	if _, err := storableKey(string(k)); err != nil {
		return fmt.Errorf("ConstantKey cannot be a key: %w", err)
	}
	return nil
}

// JoinKeys is all of extractors joined into one key, from which each part can be told again: every part is
// written as its length in bytes, a colon and its text, with a plus sign between parts ("3:a|b+1:c"). This form is
// stored, where it lives as long as the entry, and does not change.
//
// When a part has no key or cannot be told, neither has the whole: the error says which part, and wraps its error.
// To join nothing, or nil, is refused when the inbox is built.
func JoinKeys(extractors ...KeyExtractor) KeyExtractor {
	// A copy: the caller may go on using the slice while messages are handled.
	return joinedKeys(slices.Clone(extractors))
}

type joinedKeys []KeyExtractor

func (k joinedKeys) ExtractKey(msg *message.Message) (string, error) {
	if len(k) == 0 {
		return "", k.Validate()
	}
	parts := make([]string, len(k))
	for i, extractor := range k {
		part, err := extractor.ExtractKey(msg)
		if err == nil && part == "" {
			err = fmt.Errorf("%w: it is empty", ErrNoKey)
		}
		if err != nil {
			return "", fmt.Errorf("part %d of the joined key: %w", i+1, err)
		}
		parts[i] = part
	}
	return joinParts(parts...), nil
}

func joinParts(parts ...string) string {
	var joined strings.Builder
	for i, part := range parts {
		if i > 0 {
			joined.WriteByte('+')
		}
		joined.WriteString(strconv.Itoa(len(part)))
		joined.WriteByte(':')
		joined.WriteString(part)
	}
	return joined.String()
}

func (k joinedKeys) Validate() error { return validateExtractors("JoinKeys", k) }

// FirstKey is the key of the first of extractors that has one. Only ErrNoKey moves on to the next: an
// extractor that cannot tell ends the search, so that a damaged message does not get another identity.
//
// When none has one, the error is ErrNoKey with the reason of each. To choose among nothing, or nil, is refused when
// the inbox is built. Keys of different extractors are not told apart: where they can be alike, join each with a
// ConstantKey.
func FirstKey(extractors ...KeyExtractor) KeyExtractor {
	return firstKey(slices.Clone(extractors))
}

type firstKey []KeyExtractor

func (k firstKey) ExtractKey(msg *message.Message) (string, error) {
	if len(k) == 0 {
		return "", k.Validate()
	}
	var reasons error
	for _, extractor := range k {
		key, err := extractor.ExtractKey(msg)
		if err == nil && key == "" {
			err = fmt.Errorf("%w: it is empty", ErrNoKey)
		}
		if err == nil {
			return key, nil
		}
		if !errors.Is(err, ErrNoKey) {
			return "", err
		}
		if reasons == nil {
			reasons = err
		} else {
			// On one line, unlike errors.Join: the reason becomes metadata of the poisoned message, and some
			// brokers refuse a line break there.
			reasons = fmt.Errorf("%w; %w", reasons, err)
		}
	}
	return "", reasons
}

func (k firstKey) Validate() error { return validateExtractors("FirstKey", k) }

func validateExtractors(name string, extractors []KeyExtractor) error {
	if len(extractors) == 0 {
		return fmt.Errorf("%s has no extractors", name)
	}
	var problems []error
	for i, extractor := range extractors {
		if extractor == nil {
			problems = append(problems, fmt.Errorf("extractor %d of %s is nil", i+1, name))
		}
		if validator, ok := extractor.(interface{ Validate() error }); ok {
			if err := validator.Validate(); err != nil {
				problems = append(problems, fmt.Errorf("extractor %d of %s: %w", i+1, name, err))
			}
		}
	}
	return errors.Join(problems...)
}
