package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

// KeyFromCloudEvents is the source and id of a CloudEvent, which together identify it (CloudEvents 1.0,
// section 3.1), joined as by JoinKeys. hashing.EventAttribute says where they are looked for; one event has one key in
// binary and in structured mode.
//
// Spellings, or modes, that disagree are an error and not ErrNoKey: which one is meant cannot be told.
var KeyFromCloudEvents KeyExtractor = KeyFunc(func(msg *message.Message) (string, error) {
	source, err := cloudEventsAttribute(msg, "source")
	if err != nil {
		return "", err
	}
	id, err := cloudEventsAttribute(msg, "id")
	if err != nil {
		return "", err
	}
	return joinParts(source, id), nil
})

// cloudEventsAttribute returns ErrNoKey when the message is not a CloudEvent or has no such attribute.
func cloudEventsAttribute(msg *message.Message, name string) (string, error) {
	value, present, err := hashing.EventAttribute(msg, name)
	if err == nil && !present {
		err = fmt.Errorf("%w: the message has no CloudEvents attribute %q", ErrNoKey, name)
	}
	return value, err
}

// eventTypeOf is the CloudEvents type, else the name that Watermill's cqrs component gives an event.
func eventTypeOf(msg *message.Message) (string, error) {
	eventType, err := cloudEventsAttribute(msg, "type")
	if errors.Is(err, ErrNoKey) {
		return msg.Metadata["name"], nil
	}
	return eventType, err
}

func sourceOf(msg *message.Message) (string, error) {
	return cloudEventsAttribute(msg, "source")
}

// occurredAtOf is the CloudEvents time, which is in RFC 3339. Zero: the message does not say.
func occurredAtOf(msg *message.Message) (time.Time, error) {
	text, err := cloudEventsAttribute(msg, "time")
	if errors.Is(err, ErrNoKey) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	occurredAt, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, errors.New("CloudEvents attribute \"time\" is not a time in RFC 3339")
	}
	return occurredAt, nil
}
