package inboxamqp

import (
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Marshaler is a drop-in for amqp.DefaultMarshaler: it reads what that one sends, and that one reads what it sends.
//
// The zero value is ready to use. It is safe for concurrent use if PostprocessPublishing is.
type Marshaler struct {
	// PostprocessPublishing changes a message just before it is sent. It has the last word, also over properties
	// and over headers that Marshal leaves out. Optional.
	PostprocessPublishing func(amqp091.Publishing) amqp091.Publishing

	// NotPersistentDeliveryMode leaves out the persistent delivery mode: messages are then lost when the broker
	// restarts. Default: messages are persistent.
	NotPersistentDeliveryMode bool

	// MessageUUIDHeaderKey is the header that carries the UUID between Watermill peers. Default:
	// amqp.DefaultMessageUUIDHeaderKey.
	MessageUUIDHeaderKey string
}

var _ amqp.Marshaler = Marshaler{}

func (m Marshaler) uuidHeader() string {
	if m.MessageUUIDHeaderKey != "" {
		return m.MessageUUIDHeaderKey
	}
	return amqp.DefaultMessageUUIDHeaderKey
}
