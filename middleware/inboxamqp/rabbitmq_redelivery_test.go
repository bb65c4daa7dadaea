//go:build !embedded

package inboxamqp_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

func TestADeadLetteredMessageGoesRoundWithoutGrowing(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	dead := p.queue(nil)
	waiting := p.queue(amqp091.Table{"x-message-ttl": int32(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	publisher := p.publisher()
	require.NoError(t, publisher.Publish(waiting, message.NewMessage("order-1", []byte("{}"))))

	var first message.Metadata
	deliveries := p.consume(dead)
	for range 20 {
		delivery := next(t, deliveries)
		msg := requireOnlyDefaultFails(t, delivery)
		require.NoError(t, delivery.Ack(false))
		assert.Equal(t, "order-1", msg.UUID)
		assert.Equal(t, waiting, msg.Metadata["x-first-death-queue"])
		assert.Contains(t, msg.Metadata["x-death"], `"count":1,`, "each round is the first for the broker")
		assert.Contains(t, msg.Metadata["x-death"], `"reason":"expired"`)

		delete(msg.Metadata, "x-death") // has the time in it
		if first == nil {
			first = msg.Metadata
		}
		assert.Equal(t, first, msg.Metadata)
		require.NoError(t, publisher.Publish(waiting, msg))
	}
}

func TestASubscriberGetsADeadLetteredMessage(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	dead := p.queue(nil)
	waiting := p.queue(amqp091.Table{"x-message-ttl": int32(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	p.publish(waiting, amqp091.Publishing{MessageId: "order-1"})

	msg := next(t, p.subscribe(dead, nil))
	msg.Ack()
	assert.Equal(t, "order-1", msg.UUID)
	assert.Equal(t, "expired", msg.Metadata["x-first-death-reason"])
}

func TestAQuorumQueueCountsDeliveries(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	quorum := amqp091.Table{"x-queue-type": "quorum"}
	queue := p.queue(quorum)
	require.NoError(t, p.publisher().Publish(queue, message.NewMessage("order-1", nil)))

	messages := p.subscribe(queue, quorum)
	msg := next(t, messages)
	assert.Equal(t, "false", msg.Metadata[inboxamqp.RedeliveredKey])
	assert.NotContains(t, msg.Metadata, inboxamqp.DeliveryCountKey)
	for _, count := range []string{"1", "2"} {
		msg.Nack()
		msg = next(t, messages)
		assert.Equal(t, "order-1", msg.UUID)
		assert.Equal(t, "true", msg.Metadata[inboxamqp.RedeliveredKey])
		assert.Equal(t, count, msg.Metadata[inboxamqp.DeliveryCountKey])
	}
	msg.Ack()
}

func TestTheDefaultMarshalerFailsOnWhatAQuorumQueueRedelivers(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	queue := p.queue(amqp091.Table{"x-queue-type": "quorum"})
	p.publish(queue, amqp091.Publishing{MessageId: "order-1", Headers: amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: "order-1"}})

	deliveries := p.consume(queue)
	fresh := next(t, deliveries)
	_, err := amqp.DefaultMarshaler{}.Unmarshal(fresh)
	require.NoError(t, err, "the first delivery is no problem")
	require.NoError(t, fresh.Nack(false, true))

	again := next(t, deliveries)
	requireOnlyDefaultFails(t, again)
	require.NoError(t, again.Ack(false))
}
