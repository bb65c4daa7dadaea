//go:build !embedded

package inboxamqp_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
	"github.com/watermill-inbox/watermill-inbox/middleware/inboxtest"
)

// runInbox runs a router with an inbox whose handler has its message's UUID as effect, and sends each delivery that
// was handled without an error.
func runInbox(t testing.TB, p peer, queue, poison string) (memory *inboxtest.Memory, handled <-chan *message.Message) {
	t.Helper()
	memory = inboxtest.NewMemory(patience)
	config := middleware.InboxConfig{Store: memory}
	if poison != "" {
		config.PoisonQueue = middleware.PoisonQueue{Publisher: p.publisher(), Topic: poison}
	}
	inbox, err := middleware.NewInbox(config)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)

	done := make(chan *message.Message, 100)
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil {
				done <- msg
			}
			return produced, err
		}
	}, inbox.Middleware)
	router.AddConsumerHandler("billing", queue, p.subscriber(nil), func(msg *message.Message) error {
		return memory.Effect(msg.Context(), msg.UUID)
	})

	var running sync.WaitGroup
	running.Add(1)
	go func() {
		defer running.Done()
		assert.NoError(t, router.Run(context.Background()))
	}()
	t.Cleanup(func() {
		assert.NoError(t, router.Close())
		running.Wait()
	})
	return memory, done
}

func TestTwoCopiesThatSayNotRedeliveredHaveOneEffect(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	queue := p.queue(nil)
	memory, handled := runInbox(t, p, queue, "")
	for range 2 {
		p.publish(queue, amqp091.Publishing{MessageId: "order-1", Body: []byte("{}")})
	}
	for range 2 {
		msg := next(t, handled)
		assert.Equal(t, "order-1", msg.UUID)
		assert.Equal(t, "false", msg.Metadata[inboxamqp.RedeliveredKey])
	}
	assert.Equal(t, []string{"order-1"}, memory.Effects())
}

func TestAMessageWithoutIdentityIsPoisonedOnceAndNotNackedForEver(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	queue, poison := p.queue(nil), p.queue(nil)
	memory, handled := runInbox(t, p, queue, poison)
	p.publish(queue, amqp091.Publishing{Type: "order.created", Headers: amqp091.Table{
		"x-death": []any{amqp091.Table{"count": int64(1)}}, "CC": []any{}, middleware.PoisonConsumerKey: "forged",
	}})

	next(t, handled)
	copied := next(t, p.consume(poison))
	assert.Equal(t, string(middleware.OutcomeUnidentified), copied.Headers[middleware.PoisonOutcomeKey])
	assert.Equal(t, "billing", copied.Headers[middleware.PoisonConsumerKey], "the inbox says who, not the producer")
	assert.Equal(t, "order.created", copied.Type)
	assert.NotContains(t, copied.Headers, "x-death")
	assert.Empty(t, memory.Effects())
}

func TestHeadersThatFillAFrameDoNotKeepAMessageOutOfThePoisonQueue(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string]amqp091.Table{
		"one long string":               {"h": strings.Repeat("h", 130_900)},
		"one long identity":             {amqp.DefaultMessageUUIDHeaderKey: strings.Repeat("u", 130_900)},
		"tables that grow as JSON":      manyHeaders(12, amqp091.Table{"a": strings.Repeat("\x00", 10_000)}),
		"a great many that are nothing": manyHeaders(15_000, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t)
			queue, poison := p.queue(nil), p.queue(nil)
			_, handled := runInbox(t, p, queue, poison)
			p.publish(queue, amqp091.Publishing{Headers: headers, Body: []byte("{}")})

			next(t, handled)
			copied := next(t, p.consume(poison))
			assert.Equal(t, "{}", string(copied.Body))
			assert.Equal(t, string(middleware.OutcomeUnidentified), copied.Headers[middleware.PoisonOutcomeKey])
			assert.Equal(t, queue, copied.Headers[wmmiddleware.PoisonedTopicKey])
		})
	}
}

func manyHeaders(count int, value any) amqp091.Table {
	headers := amqp091.Table{}
	for i := range count {
		headers[strconv.Itoa(i)] = value
	}
	return headers
}
