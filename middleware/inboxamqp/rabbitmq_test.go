//go:build !embedded

package inboxamqp_test

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

// patience is how long a test waits for what must come before it fails.
const patience = time.Minute

// peer is a client of RabbitMQ that does not know Watermill.
type peer struct {
	t       testing.TB
	uri     string
	channel *amqp091.Channel
}

func newPeer(t testing.TB) peer {
	t.Helper()
	uri := os.Getenv("INBOX_TEST_AMQP")
	if uri == "" {
		t.Fatal("INBOX_TEST_AMQP is not set; run the tests with make test, which finds or starts the servers, or with make test-embedded, which needs none")
	}
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	return peer{t: t, uri: uri, channel: channel}
}

// queue declares a queue that is gone after the test.
func (p peer) queue(arguments amqp091.Table) string {
	p.t.Helper()
	name := "inboxamqp_" + strings.ToLower(rand.Text())
	_, err := p.channel.QueueDeclare(name, true, false, false, false, arguments)
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		// On a connection of its own: the test may have lost its channel, and that is then not why it failed.
		connection, err := amqp091.Dial(p.uri)
		require.NoError(p.t, err)
		defer func() { _ = connection.Close() }()
		channel, err := connection.Channel()
		require.NoError(p.t, err)
		_, err = channel.QueueDelete(name, false, false, false)
		require.NoError(p.t, err)
	})
	return name
}

func (p peer) publish(queue string, publishing amqp091.Publishing) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	confirmation, err := p.channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, publishing)
	require.NoError(p.t, err)
	acked, err := confirmation.WaitContext(ctx)
	require.NoError(p.t, err)
	require.True(p.t, acked, "the broker did not take the message")
}

// consume returns the deliveries of a queue, which the test acks or nacks itself.
func (p peer) consume(queue string) <-chan amqp091.Delivery {
	p.t.Helper()
	deliveries, err := p.channel.Consume(queue, "", false, false, false, false, nil)
	require.NoError(p.t, err)
	return deliveries
}

// config is the one of Watermill's documentation with our marshaler.
func (p peer) config(arguments amqp091.Table) amqp.Config {
	config := amqp.NewDurableQueueConfig(p.uri)
	config.Marshaler = inboxamqp.Marshaler{}
	config.Queue.Arguments = arguments
	config.Publish.ConfirmDelivery = true
	return config
}

func (p peer) publisher() *amqp.Publisher {
	p.t.Helper()
	publisher, err := amqp.NewPublisher(p.config(nil), watermill.NopLogger{})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = publisher.Close() })
	return publisher
}

func (p peer) subscriber(arguments amqp091.Table) *amqp.Subscriber {
	p.t.Helper()
	subscriber, err := amqp.NewSubscriber(p.config(arguments), watermill.NopLogger{})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = subscriber.Close() })
	return subscriber
}

func (p peer) subscribe(queue string, arguments amqp091.Table) <-chan *message.Message {
	p.t.Helper()
	messages, err := p.subscriber(arguments).Subscribe(context.Background(), queue)
	require.NoError(p.t, err)
	return messages
}

func next[T any](t testing.TB, values <-chan T) T {
	t.Helper()
	select {
	case value, ok := <-values:
		require.True(t, ok, "the channel was closed")
		return value
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// requireOnlyDefaultFails shows the difference on one delivery.
func requireOnlyDefaultFails(t testing.TB, delivery amqp091.Delivery) *message.Message {
	t.Helper()
	_, err := amqp.DefaultMarshaler{}.Unmarshal(delivery)
	require.ErrorContains(t, err, "is not a string", "amqp.DefaultMarshaler learned it")
	return unmarshal(t, delivery)
}
