package inboxamqp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

func marshal(t testing.TB, msg *message.Message) amqp091.Publishing {
	t.Helper()
	publishing, err := inboxamqp.Marshaler{}.Marshal(msg)
	require.NoError(t, err)
	require.NoError(t, publishing.Headers.Validate())
	return publishing
}

func TestPropertiesGoBackToProperties(t *testing.T) {
	t.Parallel()
	publishing := marshal(t, unmarshal(t, fullDelivery()))
	assert.Equal(t, amqp091.Publishing{
		Headers: amqp091.Table{
			amqp.DefaultMessageUUIDHeaderKey: "id",
			inboxamqp.ContentTypeKey:         "text/plain",
			inboxamqp.CorrelationIDKey:       "corr",
		},
		ContentType:     "text/plain",
		ContentEncoding: "gzip",
		CorrelationId:   "corr",
		ReplyTo:         "answers",
		MessageId:       "id",
		Timestamp:       time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
		Type:            "order.created",
		AppId:           "shop",
		DeliveryMode:    amqp091.Persistent,
	}, publishing, "expiration and user-id stay out: the copy would expire, or be refused")
}

func TestWhatBelongsToTheBrokerIsNotSent(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u", nil)
	for _, name := range []string{
		"x-death", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange", "x-last-death-queue",
		"x-delivery-count", "x-acquired-count", "x-stream-offset", "x-received-from", "x-shovelled", "x-shovelled-timestamp", "CC", "BCC",
		inboxamqp.RedeliveredKey, inboxamqp.DeliveryCountKey, inboxamqp.ExchangeKey, inboxamqp.RoutingKeyKey,
	} {
		msg.Metadata[name] = "v"
	}
	assert.Equal(t, amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: "u"}, marshal(t, msg).Headers)
}

func TestOtherMetadataPassUnchanged(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u", nil)
	for _, name := range []string{"inbox_outcome", "inbox_redriven", "reason_poisoned", "x-mine", "amqp_mine", "cc", "cloudEvents:id", ""} {
		msg.Metadata[name] = "v " + name
	}
	headers := marshal(t, msg).Headers
	for name, value := range msg.Metadata {
		assert.Equal(t, value, headers[name], name)
	}
}

func TestTheContentTypeIsFoundInEverySpelling(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"content-type", "Content-Type", "content_type", "contentType", "ContentType"} {
		msg := message.NewMessage("u", nil)
		msg.Metadata[name] = "application/json"
		assert.Equal(t, "application/json", marshal(t, msg).ContentType, name)
	}
}

func TestWhatAPropertyCannotHoldIsNotCut(t *testing.T) {
	t.Parallel()
	fits, long := strings.Repeat("a", 255), strings.Repeat("a", 256)
	msg := message.NewMessage(fits, nil)
	assert.Equal(t, fits, marshal(t, msg).MessageId)

	msg = message.NewMessage(long, nil)
	for _, name := range []string{
		inboxamqp.ContentTypeKey, inboxamqp.CorrelationIDKey, inboxamqp.ContentEncodingKey, inboxamqp.ReplyToKey,
		inboxamqp.MessageTypeKey, inboxamqp.AppIDKey, inboxamqp.TimestampKey,
	} {
		msg.Metadata[name] = long
	}
	assert.Equal(t, amqp091.Publishing{
		Headers: amqp091.Table{
			amqp.DefaultMessageUUIDHeaderKey: long,
			inboxamqp.ContentTypeKey:         long,
			inboxamqp.CorrelationIDKey:       long,
		},
		DeliveryMode: amqp091.Persistent,
	}, marshal(t, msg))
}

func TestANameThatNoHeaderCanHaveIsAnError(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u", nil)
	msg.Metadata[strings.Repeat("n", 255)] = "v"
	marshal(t, msg)

	msg.Metadata[strings.Repeat("n", 256)] = "v"
	_, err := inboxamqp.Marshaler{}.Marshal(msg)
	assert.ErrorContains(t, err, "256 bytes")
}

func TestTheOptionsOfDefaultMarshalerWork(t *testing.T) {
	t.Parallel()
	publishing, err := inboxamqp.Marshaler{
		NotPersistentDeliveryMode: true,
		PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
			p.Priority = 5
			p.MessageId += "!"
			return p
		},
	}.Marshal(message.NewMessage("u", nil))
	require.NoError(t, err)
	assert.Zero(t, publishing.DeliveryMode)
	assert.EqualValues(t, 5, publishing.Priority)
	assert.Equal(t, "u!", publishing.MessageId)
}

func TestItUnderstandsDefaultMarshalerInBothDirections(t *testing.T) {
	t.Parallel()
	sent := message.NewMessage("u", []byte("p"))
	sent.Metadata = message.Metadata{"a": "b", "content-type": "text/plain", "correlation_id": "c"}

	publishing, err := amqp.DefaultMarshaler{}.Marshal(sent)
	require.NoError(t, err)
	got := unmarshal(t, deliver(publishing))
	delete(got.Metadata, inboxamqp.RedeliveredKey)
	assert.True(t, sent.Equals(got), "%v", got.Metadata)

	got, err = amqp.DefaultMarshaler{}.Unmarshal(deliver(marshal(t, sent)))
	require.NoError(t, err)
	assert.True(t, sent.Equals(got), "%v", got.Metadata)
}

// deliver is what a broker that adds nothing makes of a publishing.
func deliver(p amqp091.Publishing) amqp091.Delivery {
	return amqp091.Delivery{
		Headers:         p.Headers,
		ContentType:     p.ContentType,
		ContentEncoding: p.ContentEncoding,
		DeliveryMode:    p.DeliveryMode,
		Priority:        p.Priority,
		CorrelationId:   p.CorrelationId,
		ReplyTo:         p.ReplyTo,
		Expiration:      p.Expiration,
		MessageId:       p.MessageId,
		Timestamp:       p.Timestamp,
		Type:            p.Type,
		UserId:          p.UserId,
		AppId:           p.AppId,
		Body:            p.Body,
	}
}
