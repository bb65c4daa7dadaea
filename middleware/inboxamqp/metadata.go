package inboxamqp

import wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

// Metadata that describes the delivery. Only the broker sets it: a header with such a name is ignored when a message
// comes in, and none of it is sent.
//
// All of it is a hint. That RedeliveredKey is "false" does not prove that the message was never delivered before: a
// producer that publishes twice makes two messages that both say so.
const (
	// RedeliveredKey is "true" if the broker says that it may have delivered the message before, else "false".
	RedeliveredKey = "amqp_redelivered"

	// DeliveryCountKey is how often a quorum queue delivered the message in vain before: the header
	// x-delivery-count, if it is an integer and not negative. A classic queue sends none, and passes one of the
	// producer on.
	DeliveryCountKey = "amqp_delivery_count"

	// ExchangeKey is the exchange to which the message was published, and missing for the default exchange.
	ExchangeKey = "amqp_exchange"

	// RoutingKeyKey is the routing key with which the message was published, and missing if it is empty.
	RoutingKeyKey = "amqp_routing_key"
)

// Metadata that is a property of the message. A property that is empty is missing. It is a property again when the
// message is sent; a header with such a name is ignored when a message comes in.
const (
	ContentEncodingKey = "amqp_content_encoding"
	MessageTypeKey     = "amqp_type"
	AppIDKey           = "amqp_app_id"
	ReplyToKey         = "amqp_reply_to"

	// TimestampKey is in RFC 3339 and UTC. Years that RFC 3339 cannot write come as seconds since 1970.
	TimestampKey = "amqp_timestamp"
)

// Metadata that is a property of the message, and a header as well, so that peers with amqp.DefaultMarshaler see it. If
// both come in, the property counts.
const (
	// ContentTypeKey is where package hashing and the CloudEvents extractors look for the media type.
	ContentTypeKey = "content-type"

	// CorrelationIDKey is the one of Watermill's CorrelationID middleware.
	CorrelationIDKey = wmmiddleware.CorrelationIDMetadataKey
)

// reserved are the names that no header can set.
var reserved = map[string]bool{
	RedeliveredKey: true, DeliveryCountKey: true, ExchangeKey: true, RoutingKeyKey: true,
	ContentEncodingKey: true, MessageTypeKey: true, AppIDKey: true, ReplyToKey: true, TimestampKey: true,
}
