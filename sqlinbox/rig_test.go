package sqlinbox_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// patience is the end of every wait of the tests: reaching it is a failure, never part of a claim.
const patience = 2 * time.Minute

// mailbox is a broker in memory. A message that is nacked stays in it.
type mailbox struct {
	mu     sync.Mutex
	topics map[string]chan *message.Message
}

func newMailbox() *mailbox {
	return &mailbox{topics: map[string]chan *message.Message{}}
}

func (m *mailbox) topic(name string) chan *message.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.topics[name] == nil {
		m.topics[name] = make(chan *message.Message)
	}
	return m.topics[name]
}

// Subscribe implements message.Subscriber.
func (m *mailbox) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	in := m.topic(topic)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case msg := <-in:
				select {
				case out <- msg:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out, nil
}

// Close implements message.Subscriber.
func (m *mailbox) Close() error { return nil }

// deliver hands a copy of msg over once and tells whether it was acked.
func (m *mailbox) deliver(t *testing.T, topic string, msg *message.Message) (acked bool) {
	t.Helper()
	return m.deliverWith(context.Background(), t, topic, msg)
}

func (m *mailbox) deliverWith(ctx context.Context, t *testing.T, topic string, msg *message.Message) (acked bool) {
	t.Helper()
	delivered := msg.Copy()
	delivered.SetContext(ctx)
	select {
	case m.topic(topic) <- delivered:
	case <-time.After(patience):
		t.Errorf("nobody takes the message from %q", topic)
		return false
	}
	select {
	case <-delivered.Acked():
		return true
	case <-delivered.Nacked():
		return false
	case <-time.After(patience):
		t.Errorf("the message of %q was neither acked nor nacked", topic)
		return false
	}
}

// deliverUntilAcked hands msg over again after each nack, at most limit times.
func (m *mailbox) deliverUntilAcked(t *testing.T, topic string, msg *message.Message, limit int) (deliveries int, acked bool) {
	t.Helper()
	for deliveries < limit && !acked {
		acked = m.deliver(t, topic, msg)
		deliveries++
	}
	return deliveries, acked
}

// poisonBox is a poison queue that keeps what it gets, or fails while err is set.
type poisonBox struct {
	mu       sync.Mutex
	messages map[string][]*message.Message // by handler
	err      error
}

// Publish implements message.Publisher.
func (p *poisonBox) Publish(_ string, messages ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	if p.messages == nil {
		p.messages = map[string][]*message.Message{}
	}
	for _, msg := range messages {
		handler := msg.Metadata.Get("handler_poisoned")
		p.messages[handler] = append(p.messages[handler], msg.Copy())
	}
	return nil
}

// Close implements message.Publisher.
func (p *poisonBox) Close() error { return nil }

func (p *poisonBox) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *poisonBox) of(handler string) []*message.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.messages[handler]
}

// diary keeps what the inbox told of its deliveries.
type diary struct {
	mu     sync.Mutex
	events map[string][]middleware.DeliveryEvent // by handler
}

// ObserveDelivery implements middleware.Observer.
func (d *diary) ObserveDelivery(event middleware.DeliveryEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.events == nil {
		d.events = map[string][]middleware.DeliveryEvent{}
	}
	d.events[event.HandlerName] = append(d.events[event.HandlerName], event)
}

func (d *diary) of(handler string) []middleware.DeliveryEvent {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]middleware.DeliveryEvent(nil), d.events[handler]...)
}

func (d *diary) outcomes(handler string) []middleware.Outcome {
	var outcomes []middleware.Outcome
	for _, event := range d.of(handler) {
		outcomes = append(outcomes, event.Outcome)
	}
	return outcomes
}

func (d *diary) lastError(handler string) error {
	events := d.of(handler)
	if len(events) == 0 {
		return nil
	}
	return events[len(events)-1].Err
}

// rig is a router with an inbox over a ledger, between a mailbox and a poison box.
type rig struct {
	ledger
	*mailbox
	poison *poisonBox
	diary  *diary
	router *message.Router
	inbox  *middleware.Inbox
}

func newRig(t *testing.T, ledger ledger, change ...func(*middleware.InboxConfig)) *rig {
	t.Helper()
	r := &rig{ledger: ledger, mailbox: newMailbox(), poison: &poisonBox{}, diary: &diary{}}
	config := middleware.InboxConfig{
		Store:       ledger.Store,
		PoisonQueue: middleware.PoisonQueue{Publisher: r.poison, Topic: "poison"},
		Observer:    r.diary,
	}
	for _, c := range change {
		c(&config)
	}
	var err error
	r.inbox, err = middleware.NewInbox(config)
	require.NoError(t, err)
	r.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	require.NoError(t, err)
	return r
}

// handle adds a handler that reads the topic of its own name.
func (r *rig) handle(name string, handler message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware) {
	r.router.AddConsumerHandler(name, name, r.mailbox, handler).AddMiddleware(middlewares...)
}

func (r *rig) run(t *testing.T) {
	t.Helper()
	runRouter(t, r.router)
}

func runRouter(t *testing.T, router *message.Router) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		t.Fatalf("the router ended: %v", err)
	case <-time.After(patience):
		t.Fatal("the router does not run")
	}
	t.Cleanup(func() { _ = router.Close() })
}

// await waits for a signal of another goroutine.
func await[T any](t *testing.T, signal <-chan T, what string) T {
	t.Helper()
	select {
	case value := <-signal:
		return value
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// eventually polls for a state that only the server can see.
func eventually(t *testing.T, what string, reached func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !reached(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
