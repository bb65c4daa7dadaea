package inboxamqp

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Unmarshal makes a message of a delivery. It never returns an error: watermill-amqp answers one with a nack, and the
// broker would deliver the message for ever.
//
// The UUID is Watermill's header if that is a string and not empty, else the property message-id, else empty. An
// empty one is for the key extractor to refuse.
//
// Headers become metadata of the same name, except those with a reserved name (RedeliveredKey to TimestampKey). Strings
// stay as they are, however long, also if they are not UTF-8. Of the other types this text is made:
//
//   - booleans, integers, floats: as JSON; NaN, +Inf and -Inf by these names
//   - decimals: 1.50 for value 150 with scale 2
//   - nil: nothing, which no extractor takes for a key; null inside of tables and arrays
//   - timestamps: RFC 3339, UTC; seconds since 1970 for years that RFC 3339 cannot write
//   - bytes: base64 (RFC 4648, section 4)
//   - tables and arrays: JSON without spaces, members sorted by name; bytes, timestamps and what is no JSON number are
//     strings in it; a byte that is not UTF-8 is written as \udc80 to \udcff
//
// The type itself is not kept: the string "5" and the number 5 look alike. Two values of one type stay different. What
// is nested deeper than 16 tables and arrays, and a text of more than 64 KiB, is replaced by sha256: and the digest of
// what it stands for.
//
// Properties and facts of the delivery become metadata too; see the constants. The properties delivery-mode, priority,
// expiration and user-id are not exposed.
func (m Marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg := message.NewMessage(m.uuidOf(delivery), delivery.Body)
	for name, value := range delivery.Headers {
		if name != m.uuidHeader() && !reserved[name] {
			msg.Metadata[name] = headerText(value)
		}
	}

	msg.Metadata[RedeliveredKey] = strconv.FormatBool(delivery.Redelivered)
	for name, value := range map[string]string{
		DeliveryCountKey:   deliveryCount(delivery.Headers),
		ExchangeKey:        delivery.Exchange,
		RoutingKeyKey:      delivery.RoutingKey,
		ContentTypeKey:     delivery.ContentType,
		ContentEncodingKey: delivery.ContentEncoding,
		CorrelationIDKey:   delivery.CorrelationId,
		MessageTypeKey:     delivery.Type,
		AppIDKey:           delivery.AppId,
		ReplyToKey:         delivery.ReplyTo,
	} {
		if value != "" {
			msg.Metadata[name] = value
		}
	}
	if !delivery.Timestamp.IsZero() {
		msg.Metadata[TimestampKey] = timeText(delivery.Timestamp)
	}
	return msg, nil
}

func (m Marshaler) uuidOf(delivery amqp091.Delivery) string {
	if uuid, _ := delivery.Headers[m.uuidHeader()].(string); uuid != "" {
		return uuid
	}
	return delivery.MessageId
}

// deliveryCount is empty if there is none. RabbitMQ sends a 64-bit integer, but the type depends on its version.
func deliveryCount(headers amqp091.Table) string {
	var count int64
	switch v := headers["x-delivery-count"].(type) {
	case byte:
		count = int64(v)
	case int8:
		count = int64(v)
	case int16:
		count = int64(v)
	case int32:
		count = int64(v)
	case int64:
		count = v
	case int:
		count = int64(v)
	default:
		return ""
	}
	if count < 0 {
		return ""
	}
	return strconv.FormatInt(count, 10)
}
