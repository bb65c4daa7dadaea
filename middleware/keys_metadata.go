package middleware

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// KeyFromMetadata is the metadata with this name.
//
// Names that cannot identify one message are refused for a key when the inbox is built: correlation and trace
// identifiers, counters of deliveries, times, and descriptions such as the type. As a part of JoinKeys beside one
// that identifies, a description is welcome; what changes with each delivery never is. KeyFromMetadataUnchecked
// takes every name.
func KeyFromMetadata(name string) KeyExtractor {
	return metadataKey{name: name}
}

// KeyFromMetadataUnchecked is KeyFromMetadata for a name that it refuses, if your producers do give every
// message its own value there.
func KeyFromMetadataUnchecked(name string) KeyExtractor {
	return metadataKey{name: name, unchecked: true}
}

type metadataKey struct {
	name      string
	unchecked bool
}

func (k metadataKey) ExtractKey(msg *message.Message) (string, error) {
	value, ok := msg.Metadata[k.name]
	switch {
	case !ok:
		return "", fmt.Errorf("%w: metadata %q is missing", ErrNoKey, k.name)
	case value == "":
		return "", fmt.Errorf("%w: metadata %q is empty", ErrNoKey, k.name)
	default:
		return value, nil
	}
}

func (k metadataKey) Validate() error {
	if k.name == "" {
		return errors.New("KeyFromMetadata has no name")
	}
	return nil
}
