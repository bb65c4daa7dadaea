package middleware

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// KeyFromCloudEvents is the source and id of a CloudEvent, which together identify it (CloudEvents 1.0,
// section 3.1), joined as by JoinKeys.
//
// In binary mode they are metadata, in the spellings of the HTTP binding (ce-id, also as Ce-Id), of the Kafka
// binding (ce_id) and of the AMQP binding (cloudEvents:id, cloudEvents_id). Values in the HTTP spelling are
// percent-decoded, as that binding has it. In structured mode they are members of the JSON payload; that is so
// when the content type says application/cloudevents+json or, if there is no attribute in the metadata, when the
// payload is an object with specversion, id and source. So one event has one key in every mode.
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
	binary, spelling, err := binaryAttribute(msg, name)
	if err != nil {
		return "", err
	}
	declared, err := isDeclaredStructured(msg)
	if err != nil {
		return "", err
	}
	if !declared && (spelling != "" || !looksStructured(msg.Payload) || hasBinaryAttributes(msg)) {
		if spelling == "" {
			return "", fmt.Errorf("%w: the message has no CloudEvents attribute %q", ErrNoKey, name)
		}
		return binary, nil
	}

	value, err := lookUpJSON(msg.Payload, []string{name})
	if err != nil {
		return "", fmt.Errorf("CloudEvents attribute %q: %w", name, err)
	}
	structured, err := keyOfJSON(value)
	switch {
	case errors.Is(err, ErrNoKey) && spelling != "":
		return binary, nil
	case err != nil:
		return "", fmt.Errorf("CloudEvents attribute %q: %w", name, err)
	case spelling != "" && binary != structured:
		return "", fmt.Errorf("CloudEvents attribute %q is %.64q in the payload and %.64q in metadata %q; the producer must send one", name, structured, binary, spelling)
	default:
		return structured, nil
	}
}

// binarySpellings are the metadata names of each attribute that the inbox reads. The first two are
// percent-encoded. They are made once: every delivery looks for them.
var binarySpellings = func() map[string][5]string {
	spellings := map[string][5]string{}
	for _, name := range []string{"specversion", "id", "source", "type", "time", "dataschema"} {
		spellings[name] = [...]string{
			"ce-" + name, "Ce-" + strings.ToUpper(name[:1]) + name[1:], "ce_" + name, "cloudEvents:" + name, "cloudEvents_" + name,
		}
	}
	return spellings
}()

func binaryAttribute(msg *message.Message, name string) (value, spelling string, err error) {
	for i, candidate := range binarySpellings[name] {
		text, ok := msg.Metadata[candidate]
		if !ok || text == "" {
			continue
		}
		if i < 2 {
			if text, err = url.PathUnescape(text); err != nil {
				return "", "", fmt.Errorf("metadata %q is not percent-encoded as the CloudEvents HTTP binding has it", candidate)
			}
		}
		if spelling != "" && text != value {
			return "", "", fmt.Errorf("metadata %q and %q disagree: %.64q and %.64q; the producer must send one", spelling, candidate, value, text)
		}
		value, spelling = text, candidate
	}
	return value, spelling, nil
}

func hasBinaryAttributes(msg *message.Message) bool {
	for _, name := range []string{"specversion", "id", "source", "type"} {
		for _, spelling := range binarySpellings[name] {
			if msg.Metadata[spelling] != "" {
				return true
			}
		}
	}
	return false
}

var contentTypeSpellings = [...]string{"content-type", "Content-Type", "content_type", "contentType", "ContentType"}

const structuredMediaType = "application/cloudevents+json"

// isDeclaredStructured reads the content type in the spellings that brokers and bridges use.
func isDeclaredStructured(msg *message.Message) (bool, error) {
	for _, name := range contentTypeSpellings {
		value := msg.Metadata[name]
		if len(value) < len(structuredMediaType) {
			continue
		}
		mediaType, _, err := mime.ParseMediaType(value)
		if err != nil {
			continue
		}
		if strings.HasPrefix(mediaType, "application/cloudevents-batch") {
			return false, errors.New("the message is a batch of CloudEvents, which has no key of its own; split it before the inbox")
		}
		if mediaType == structuredMediaType {
			return true, nil
		}
	}
	return false, nil
}

// looksStructured is a cheap look first: most payloads are no CloudEvents.
func looksStructured(payload []byte) bool {
	if !bytes.Contains(payload, []byte(`"specversion"`)) || !json.Valid(payload) {
		return false
	}
	for _, name := range []string{"specversion", "id", "source"} {
		value, err := lookUpJSON(payload, []string{name})
		if err != nil {
			// Such as a member that stands there twice: let the attribute's own look-up say so.
			return bytes.HasPrefix(bytes.TrimLeft(payload, " \t\r\n"), []byte("{"))
		}
		if text, ok := value.(string); !ok || text == "" {
			return false
		}
	}
	return true
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
		return time.Time{}, fmt.Errorf("CloudEvents attribute \"time\" is %.64q, not a time in RFC 3339", text)
	}
	return occurredAt, nil
}
