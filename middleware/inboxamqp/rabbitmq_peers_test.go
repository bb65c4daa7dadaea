//go:build !embedded

package inboxamqp_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

func TestAProducerThatIsNotWatermillIsUnderstood(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	queue := p.queue(nil)
	noon := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	p.publish(queue, amqp091.Publishing{
		MessageId: "order-1", ContentType: "application/json", ContentEncoding: "identity", CorrelationId: "corr",
		ReplyTo: "answers", Type: "order.created", AppId: "shop", Timestamp: noon, Body: []byte("{}"),
		Headers: amqp091.Table{
			"text": "t", "bool": true, "byte": byte(200), "int8": int8(-1), "int16": int16(2), "int32": int32(3), "int64": int64(4),
			"float32": float32(0.5), "float64": 0.25, "decimal": amqp091.Decimal{Scale: 2, Value: 150}, "time": noon, "bytes": []byte{0, 255},
			"nil": nil, "table": amqp091.Table{"b": int32(1), "a": []any{"x"}}, "deep": nested(30, "x"), "bad": "\xff", inboxamqp.RedeliveredKey: "true",
		},
	})

	msg := next(t, p.subscribe(queue, nil))
	msg.Ack()
	assert.Equal(t, "order-1", msg.UUID)
	assert.Equal(t, "{}", string(msg.Payload))
	assert.Contains(t, msg.Metadata["deep"], "sha256:")
	delete(msg.Metadata, "deep")
	assert.Equal(t, message.Metadata{
		"text": "t", "bool": "true", "byte": "200", "int8": "-1", "int16": "2", "int32": "3", "int64": "4",
		"float32": "0.5", "float64": "0.25", "decimal": "1.50", "time": "2024-02-29T12:00:00Z", "bytes": "AP8=",
		"nil": "", "table": `{"a":["x"],"b":1}`, "bad": "\xff",
		inboxamqp.RedeliveredKey: "false", inboxamqp.RoutingKeyKey: queue, inboxamqp.ContentTypeKey: "application/json",
		inboxamqp.ContentEncodingKey: "identity", inboxamqp.CorrelationIDKey: "corr", inboxamqp.ReplyToKey: "answers",
		inboxamqp.MessageTypeKey: "order.created", inboxamqp.AppIDKey: "shop", inboxamqp.TimestampKey: "2024-02-29T12:00:00Z",
	}, msg.Metadata)
}

func TestAConsumerThatIsNotWatermillUnderstands(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	queue := p.queue(nil)
	msg := message.NewMessage("order-1", []byte("{}"))
	msg.Metadata = message.Metadata{
		"content-type": "application/json", "correlation_id": "corr", "cloudEvents:id": "e1",
		inboxamqp.MessageTypeKey: "order.created", inboxamqp.TimestampKey: "2024-02-29T12:00:00Z",
	}
	require.NoError(t, p.publisher().Publish(queue, msg))

	got := next(t, p.consume(queue))
	require.NoError(t, got.Ack(false))
	assert.Equal(t, "order-1", got.MessageId)
	assert.Equal(t, "application/json", got.ContentType)
	assert.Equal(t, "corr", got.CorrelationId)
	assert.Equal(t, "order.created", got.Type)
	assert.Equal(t, int64(1709208000), got.Timestamp.Unix())
	assert.Equal(t, amqp091.Persistent, got.DeliveryMode)
	assert.Equal(t, amqp091.Table{
		amqp.DefaultMessageUUIDHeaderKey: "order-1", "content-type": "application/json", "correlation_id": "corr", "cloudEvents:id": "e1",
	}, got.Headers)
}

func TestEmptyAndLargeBodiesPassTheBroker(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	queue := p.queue(nil)
	publisher, messages := p.publisher(), p.subscribe(queue, nil)
	for _, body := range [][]byte{nil, bytes.Repeat([]byte("0123456789abcdef"), 1<<20)} {
		require.NoError(t, publisher.Publish(queue, message.NewMessage("id", body)))
		msg := next(t, messages)
		msg.Ack()
		assert.True(t, bytes.Equal(body, msg.Payload), "%d bytes became %d", len(body), len(msg.Payload))
	}
}

func TestAReplyToThatClosesTheChannelDoesNotStopACopy(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	poison := p.queue(nil)
	msg := message.NewMessage("id", nil)
	msg.Metadata.Set(inboxamqp.ReplyToKey, "amq.rabbitmq.reply-to") // from another transport; RabbitMQ replaces it in a delivery
	require.NoError(t, p.publisher().Publish(poison, msg))
	delivery := next(t, p.consume(poison))
	assert.Equal(t, "id", delivery.MessageId)
	assert.Empty(t, delivery.ReplyTo)
}

func TestAProducerCannotRouteOrStopACopyWithCC(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	queue, victim, poison := p.queue(nil), p.queue(nil), p.queue(nil)
	messages := p.subscribe(queue, nil)
	p.publish(queue, amqp091.Publishing{MessageId: "id", Headers: amqp091.Table{"CC": []any{victim}}})
	msg := next(t, messages)
	msg.Ack()
	require.Contains(t, msg.Metadata["CC"], victim, "it is shown")

	require.NoError(t, p.publisher().Publish(poison, msg), "RabbitMQ closes the channel when CC comes as text")
	assert.Equal(t, "id", next(t, p.consume(poison)).MessageId)
	state, err := p.channel.QueueDeclarePassive(victim, true, false, false, false, nil)
	require.NoError(t, err)
	assert.Equal(t, 1, state.Messages, "only the producer's own message went there")
}
