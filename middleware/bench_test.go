package middleware_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

const patience = time.Minute

// bench is a Watermill router with the inbox in front of one handler, "billing", on a store in memory.
type bench struct {
	config middleware.InboxConfig
	store  *memory
	poison *recorder
	output *recorder // of the router's handler

	handler message.HandlerFunc
	outside []message.HandlerMiddleware // between the router and the inbox
	inside  []message.HandlerMiddleware // between the inbox and the handler

	broker *gochannel.GoChannel
	logger *watermill.CaptureLoggerAdapter

	mu     sync.Mutex
	events []middleware.DeliveryEvent
}

func newBench(t *testing.T, handler message.HandlerFunc, change ...func(*bench)) *bench {
	t.Helper()
	b := &bench{store: &memory{}, poison: &recorder{}, output: &recorder{}, handler: handler, logger: watermill.NewCaptureLogger()}
	b.config = middleware.InboxConfig{
		Store:       b.store,
		PoisonQueue: middleware.PoisonQueue{Publisher: b.poison, Topic: "orders.poison"},
		Observer:    b,
		Logger:      b.logger,
	}
	for _, c := range change {
		c(b)
	}
	b.run(t)
	return b
}

func (b *bench) run(t *testing.T) {
	t.Helper()
	inbox, err := middleware.NewInbox(b.config)
	require.NoError(t, err)
	b.broker = gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(t, err)
	router.AddPlugin(inbox.Plugin)
	billing := router.AddHandler("billing", "orders", b.broker, "invoices", b.output, b.handler)
	billing.AddMiddleware(b.outside...)
	billing.AddMiddleware(inbox.Middleware)
	billing.AddMiddleware(b.inside...)

	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		require.NoError(t, err, "the router does not start")
	}
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	})
}

// deliver publishes msg and waits until it is acked.
func (b *bench) deliver(t *testing.T, msg *message.Message) {
	t.Helper()
	acked := make(chan error, 1)
	go func() { acked <- b.broker.Publish("orders", msg) }()
	select {
	case err := <-acked:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "not acked", "outcomes so far: %v", b.outcomes())
	}
}

// ObserveDelivery implements middleware.Observer.
func (b *bench) ObserveDelivery(event middleware.DeliveryEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, event)
}

func (b *bench) deliveries() []middleware.DeliveryEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.events)
}

func (b *bench) outcomes() []middleware.Outcome {
	outcomes := []middleware.Outcome{}
	for _, event := range b.deliveries() {
		outcomes = append(outcomes, event.Outcome)
	}
	return outcomes
}

func order(id, payload string) *message.Message {
	msg := message.NewMessage(id, message.Payload(payload))
	msg.Metadata.Set("tenant", "acme")
	return msg
}

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

var errBroken = errors.New("the handler is broken")

// memory is a Store that keeps entries in a map. Its transaction is a value in the context.
type memory struct {
	mu      sync.Mutex
	entries map[string]middleware.StoredEntry

	// answer, if set, is given instead of looking.
	answer func() (middleware.Receipt, error)
}

type memoryTransaction struct{}

func (m *memory) Process(ctx context.Context, entry middleware.Entry, effect func(context.Context) error) (middleware.Receipt, error) {
	if m.answer != nil {
		return m.answer()
	}
	id := entry.Consumer + "\x00" + entry.MessageKey
	m.mu.Lock()
	defer m.mu.Unlock()
	if stored, ok := m.entries[id]; ok {
		return middleware.Receipt{Disposition: middleware.KnownByKey, Stored: stored}, nil
	}
	if err := effect(context.WithValue(ctx, memoryTransaction{}, entry)); err != nil {
		return middleware.Receipt{}, err
	}
	if m.entries == nil {
		m.entries = map[string]middleware.StoredEntry{}
	}
	m.entries[id] = middleware.StoredEntry{
		MessageKey: entry.MessageKey, PayloadHash: entry.PayloadHash, ResultReference: "task/" + entry.MessageKey,
		ReceivedAt: entry.ReceivedAt, ProcessedAt: entry.ReceivedAt,
	}
	return middleware.Receipt{Disposition: middleware.Accepted}, nil
}

func (m *memory) size() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// recorder is a publisher that keeps what is published, or refuses it.
type recorder struct {
	mu        sync.Mutex
	published []*message.Message
	topics    []string
	err       error
}

func (r *recorder) Publish(topic string, messages ...*message.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	r.published = append(r.published, messages...)
	r.topics = append(r.topics, topic)
	return nil
}

func (r *recorder) Close() error { return nil }

func (r *recorder) messages() []*message.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.published)
}
