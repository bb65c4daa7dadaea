package sqlinbox_test

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// service is a Watermill router with the inbox in front of one handler, "billing", on a broker in memory.
type service struct {
	ledger
	config serviceConfig
	broker *broker

	mu     sync.Mutex
	events []middleware.DeliveryEvent
	starts []balance
}

// balance is what the database held when a delivery began.
type balance struct{ entries, effects int }

type serviceConfig struct {
	inbox   middleware.InboxConfig
	handler message.HandlerFunc

	outside []message.HandlerMiddleware // between the router and the inbox
	inside  []message.HandlerMiddleware // between the inbox and the handler
	bare    message.NoPublishHandlerFunc

	watched bool // note what the database holds when a delivery begins, for atStart

	poison *publisher // of the inbox
	output *publisher // of the router's handler
}

func newService(t *testing.T, database testdb.Database, handler message.HandlerFunc, change ...func(*serviceConfig)) *service {
	t.Helper()
	return newServiceOn(t, newLedger(t, database), handler, change...)
}

func newServiceOn(t *testing.T, ledger ledger, handler message.HandlerFunc, change ...func(*serviceConfig)) *service {
	t.Helper()
	s := &service{ledger: ledger, broker: newBroker(t)}
	s.config = serviceConfig{handler: handler, poison: &publisher{}, output: &publisher{}}
	s.config.inbox = middleware.InboxConfig{
		Store:       ledger.Store,
		PoisonQueue: middleware.PoisonQueue{Publisher: s.config.poison, Topic: "orders.poison"},
		Observer:    s,
	}
	for _, c := range change {
		c(&s.config)
	}
	s.run(t)
	return s
}

func (s *service) run(t *testing.T) {
	t.Helper()
	inbox, err := middleware.NewInbox(s.config.inbox)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddPlugin(inbox.Plugin)

	billing := router.AddHandler("billing", "orders", s.broker, "invoices", s.config.output, s.config.handler)
	if s.config.watched {
		billing.AddMiddleware(s.watch)
	}
	billing.AddMiddleware(s.config.outside...)
	billing.AddMiddleware(inbox.Middleware)
	billing.AddMiddleware(s.config.inside...)
	if s.config.bare != nil {
		router.AddConsumerHandler("bare", "orders", s.broker, s.config.bare)
	}

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

// watch notes what the database holds when a delivery begins.
func (s *service) watch(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		var b balance
		err := s.db.QueryRow(`SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM effects)`).Scan(&b.entries, &b.effects)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.starts = append(s.starts, b)
		s.mu.Unlock()
		return h(msg)
	}
}

// ObserveDelivery implements middleware.Observer.
func (s *service) ObserveDelivery(event middleware.DeliveryEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event)
}

func (s *service) deliveries() []middleware.DeliveryEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

func (s *service) outcomes() []middleware.Outcome {
	outcomes := []middleware.Outcome{}
	for _, event := range s.deliveries() {
		outcomes = append(outcomes, event.Outcome)
	}
	return outcomes
}

// atStart is what the database held when delivery n, counted from 0, began.
func (s *service) atStart(n int) balance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starts[n]
}

// deliver publishes msg and waits until it is acked.
func (s *service) deliver(t *testing.T, msg *message.Message) {
	t.Helper()
	s.publish(t, msg)
	s.awaitAcks(t, 1)
}

func (s *service) publish(t *testing.T, msg *message.Message) {
	t.Helper()
	require.NoError(t, s.broker.Publish("orders", msg))
}

func (s *service) awaitAcks(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-s.broker.acks:
		case <-time.After(patience):
			require.Fail(t, "not acked", "outcomes so far: %v", s.outcomes())
		}
	}
}

// newOrder is a message with a payload that hashes to itself.
func newOrder(id, payload string) *message.Message {
	msg := message.NewMessage(id, message.Payload(payload))
	msg.Metadata.Set("tenant", "acme")
	return msg
}

// writeEffect is a handler that writes one effect.
func writeEffect(msg *message.Message) ([]*message.Message, error) {
	return nil, effect(msg.Context())
}

// inTransaction is a handler that writes one effect and then does what fn says in the same transaction.
func inTransaction(fn func(tx *sql.Tx, msg *message.Message) error) message.HandlerFunc {
	return sqlinbox.Handler(func(tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if err := effect(msg.Context()); err != nil {
			return nil, err
		}
		return nil, fn(tx, msg)
	})
}

// broker is a GoChannel that tells of every ack. A nacked message is delivered again at once.
type broker struct {
	*gochannel.GoChannel
	acks    chan string
	closing chan struct{}
}

func newBroker(t *testing.T) *broker {
	b := &broker{
		GoChannel: gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
		acks:      make(chan string, 1000),
		closing:   make(chan struct{}),
	}
	t.Cleanup(func() {
		close(b.closing)
		_ = b.GoChannel.Close()
	})
	return b
}

func (b *broker) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := b.GoChannel.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			go b.watch(msg)
			select {
			case out <- msg:
			case <-b.closing:
			}
		}
	}()
	return out, nil
}

func (b *broker) watch(msg *message.Message) {
	select {
	case <-msg.Acked():
		b.acks <- msg.UUID
	case <-msg.Nacked():
	case <-b.closing:
	}
}

// publisher keeps what is published, or refuses it.
type publisher struct {
	mu        sync.Mutex
	published []*message.Message
	topics    []string
	refuse    func() error
}

func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		if err := p.refuse(); err != nil {
			return err
		}
	}
	p.published = append(p.published, messages...)
	p.topics = append(p.topics, topic)
	return nil
}

func (p *publisher) Close() error { return nil }

func (p *publisher) messages() []*message.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.published)
}
