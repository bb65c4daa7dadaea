package middleware

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrNoKey means that a message does not have what a KeyExtractor looks for: it is missing, null or empty.
var ErrNoKey = errors.New("no key")

// KeyExtractor finds a key, or another short text, in a message.
//
// An extractor is safe for concurrent use, neither keeps nor changes the message, and gives the same
// answer for every delivery of one message.
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
