package inboxamqp

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// maxShort is the longest short string of AMQP in bytes. amqp091-go cuts a longer one without a word, so that two
// identities could become one.
const maxShort = 255

// Marshal makes a publishing of a message.
//
// Metadata become string headers, with the UUID in Watermill's header and in the property message-id. The metadata that
// Unmarshal makes of properties are properties again. Not sent are
//
//   - facts of an earlier delivery (RedeliveredKey, DeliveryCountKey, ExchangeKey, RoutingKeyKey)
//   - the broker's own headers: x-death, x-first-death-*, x-last-death-*, x-delivery-count, x-acquired-count,
//     x-stream-offset, x-received-from, x-shovelled, x-shovelled-timestamp
//   - CC and BCC, with which a producer could send the copy in the poison queue to queues of its choice, or, because
//     RabbitMQ closes the channel if they are no arrays, keep it from being published
//   - reply-to if it is amq.rabbitmq.reply-to, for which RabbitMQ closes the channel of a publisher that does not listen there
//   - a property that AMQP cannot carry: longer than 255 bytes, or a timestamp that is none. UUID, content type and
//     correlation id are still in their headers then.
//
// The rest passes unchanged, also names with the prefix inbox_: the inbox itself sets or removes its evidence.
//
// A copy for the poison queue (one with Watermill's metadata reason_poisoned) whose headers take more than 120 KiB would
// not fit into RabbitMQ's frame; it is cut. The largest headers are replaced by sha256: and their digest, and left out if
// that is not enough, but for UUID and evidence of up to 8 KiB; HeadersCutKey tells how many. The headers of other messages are not
// measured.
//
// The only error is a metadata name of more than 255 bytes, which no AMQP header can have.
func (m Marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	headers := make(amqp091.Table, len(msg.Metadata)+1)
	for name, value := range msg.Metadata {
		if reserved[name] || ownedByBroker(name) {
			continue
		}
		if len(name) > maxShort {
			return amqp091.Publishing{}, fmt.Errorf("metadata name %.64q... has %d bytes, an AMQP header at most %d; shorten it before publishing", name, len(name), maxShort)
		}
		headers[name] = value
	}
	headers[m.uuidHeader()] = msg.UUID
	if isPoisoned(msg.Metadata) {
		cutToFit(headers, m.uuidHeader())
	}

	publishing := amqp091.Publishing{
		Headers:         headers,
		ContentType:     short(contentType(msg.Metadata)),
		ContentEncoding: short(msg.Metadata[ContentEncodingKey]),
		CorrelationId:   short(msg.Metadata[CorrelationIDKey]),
		ReplyTo:         replyTo(msg.Metadata),
		MessageId:       short(msg.UUID),
		Type:            short(msg.Metadata[MessageTypeKey]),
		AppId:           short(msg.Metadata[AppIDKey]),
		Body:            msg.Payload,
	}
	if timestamp, ok := parseTime(msg.Metadata[TimestampKey]); ok {
		publishing.Timestamp = timestamp
	}
	if !m.NotPersistentDeliveryMode {
		publishing.DeliveryMode = amqp091.Persistent
	}
	if m.PostprocessPublishing != nil {
		publishing = m.PostprocessPublishing(publishing)
	}
	return publishing, nil
}

func short(value string) string {
	if len(value) > maxShort {
		return ""
	}
	return value
}

// replyTo leaves out the name with which a publisher asks for answers on its own channel. RabbitMQ closes the channel of
// one that does not listen there, as one does not that passes on the message of another.
func replyTo(metadata message.Metadata) string {
	if metadata[ReplyToKey] == "amq.rabbitmq.reply-to" {
		return ""
	}
	return short(metadata[ReplyToKey])
}

// contentType reads the spellings that package hashing reads, in the same order: peers must not see another type than
// the inbox does.
func contentType(metadata message.Metadata) string {
	for _, name := range [...]string{ContentTypeKey, "Content-Type", "content_type", "contentType", "ContentType"} {
		if value := metadata[name]; value != "" {
			return value
		}
	}
	return ""
}
