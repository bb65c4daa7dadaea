package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

// InboxConfig configures an Inbox.
type InboxConfig struct {
	// Store keeps the entries. Required.
	Store Store

	// PoisonQueue takes the messages that can never be processed as they are. Optional; see PoisonQueue
	// for what happens without it.
	PoisonQueue PoisonQueue

	// Outbox publishes the messages that a handler returns, inside the transaction that the messages'
	// context carries. Without it a handler that returns messages fails with ErrNoOutbox.
	Outbox message.Publisher

	// Handlers configures handlers by their name in the router. A handler without an entry here gets the
	// defaults of HandlerConfig. A name that the router does not know is refused by Plugin.
	Handlers map[string]HandlerConfig

	// Observer is told of every delivery. Optional.
	Observer Observer

	// Logger gets one line for each delivery that is not accepted. Default: watermill.NopLogger.
	Logger watermill.LoggerAdapter
}

func (c *InboxConfig) setDefaults() {
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}

// Validate returns every problem of the configuration at once.
func (c InboxConfig) Validate() error {
	problems := []error{c.PoisonQueue.validate()}
	if c.Outbox != nil && isNil(c.Outbox) {
		problems = append(problems, fmt.Errorf("outbox is a nil %T; look for the error of its constructor", c.Outbox))
	}
	if isNil(c.Store) {
		problems = append(problems, errors.New("store is nil; set InboxConfig.Store, for example to what sqlinbox.NewStore returns"))
	}
	return errors.Join(append(problems, validateHandlers(c.Handlers)...)...)
}

// Inbox is a router middleware after which a message that is delivered twice has its effect once: it
// records every delivery in the transaction of the handler's own writes.
//
// An Inbox is safe for concurrent use by any number of handlers and routers.
type Inbox struct {
	config   InboxConfig
	handlers handlerConfigs
}

// NewInbox returns an Inbox, or an error with every problem of config.
func NewInbox(config InboxConfig) (*Inbox, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid inbox config: %w", err)
	}
	return &Inbox{config: config, handlers: newHandlerConfigs(config.Handlers)}, nil
}

// Middleware makes the effect of h in the transaction happen once per consumer and message key.
//
// Add it last, next to the handler. Recoverer, PoisonQueue, Retry and Timeout belong outside of it: each
// call of h is one transaction, and an error of h rolls it back.
//
// The message's context holds the transaction while h runs, and is restored afterwards.
func (i *Inbox) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (_ []*message.Message, err error) {
		d := newDelivery(i, msg)
		defer d.settle(&err)

		d.err = i.deliver(d, h)
		d.returned = true
		return nil, d.err
	}
}

// deliver is the whole algorithm. A nil error is an ack.
func (i *Inbox) deliver(d *delivery, h message.HandlerFunc) error {
	if err := d.refusal(); err != nil {
		return i.fail(d, err)
	}

	entry, outcome, err := d.handler.identify(d.msg, d.receivedAt)
	d.entry = entry
	if err != nil {
		return i.poison(d, outcome, StoredEntry{}, err)
	}

	receipt, err := i.config.Store.Process(d.ctx, entry, func(ctx context.Context) error {
		return i.handle(ctx, d, h)
	})
	if err != nil {
		return i.fail(d, err)
	}

	switch receipt.Disposition {
	case Accepted:
		d.outcome = OutcomeAccepted
		return nil
	case KnownByBusinessKey:
		return d.duplicate(OutcomeSemanticDuplicate, receipt.Stored)
	case KnownByKey:
		verdict, err := d.compare(receipt.Stored.PayloadHash)
		switch {
		case err != nil:
			return i.poison(d, OutcomeUnidentified, StoredEntry{}, err)
		case verdict == hashing.Different:
			return i.poison(d, OutcomeCollision, receipt.Stored, nil)
		}
		d.incomparable = verdict == hashing.Incomparable
		return d.duplicate(OutcomeDuplicate, receipt.Stored)
	case PastHorizon:
		return i.poison(d, OutcomeLate, StoredEntry{}, nil)
	case Held:
		return d.failure(OutcomeInFlight, StoredEntry{}, nil)
	default:
		return fmt.Errorf("store %T answered with unknown disposition %d", i.config.Store, receipt.Disposition)
	}
}

// handle runs the handler and puts what it produces into the same transaction.
func (i *Inbox) handle(ctx context.Context, d *delivery, h message.HandlerFunc) error {
	d.restoreMessage()
	ctx = withCause(ctx, d.entry, d.msg)
	d.msg.SetContext(ctx)

	produced, err := h(d.msg)
	if err != nil || len(produced) == 0 {
		return err
	}
	if i.config.Outbox == nil {
		return fmt.Errorf("handler %q: %w", d.handlerName, ErrNoOutbox)
	}
	topic := message.PublishTopicFromCtx(d.ctx)
	if topic == "" {
		return fmt.Errorf("handler %q: %w; add it with AddHandler and a publish topic", d.handlerName, message.ErrOutputInNoPublisherHandler)
	}
	for _, p := range produced {
		p.SetContext(ctx)
	}
	return i.config.Outbox.Publish(topic, produced...)
}

// poison parks a message that can never be processed as it is, and acks it only if that worked.
func (i *Inbox) poison(d *delivery, outcome Outcome, stored StoredEntry, cause error) error {
	reason := d.failure(outcome, stored, cause)
	publish := func(context.Context) error {
		if !i.config.PoisonQueue.configured() {
			return nil
		}
		d.poisoned = true
		return i.config.PoisonQueue.publish(d.msg, reason)
	}

	var err error
	if evidence, ok := i.config.Store.(CollisionStore); ok && outcome == OutcomeCollision {
		err = evidence.RecordCollision(d.ctx, d.collision(stored), publish)
	} else {
		err = publish(d.ctx)
	}
	switch {
	case err != nil:
		d.poisoned = false
		return errors.Join(reason, err)
	case !i.config.PoisonQueue.configured():
		return reason
	default:
		d.reason = reason
		return nil
	}
}

// fail returns the error of a delivery that came to nothing, and the router nacks. If the message was acked
// already, by its handler or by InstantAck, nobody else keeps it any more: a copy goes to the poison queue.
func (i *Inbox) fail(d *delivery, err error) error {
	if !isAcked(d.msg) {
		return err
	}
	if errors.Is(err, ErrAckedBeforeCommit) {
		err = nil // the reason says so itself
	}
	d.restoreMessage()
	d.entry.Consumer = d.handler.Consumer
	reason := d.failure(OutcomeError, StoredEntry{}, err)
	if !i.config.PoisonQueue.configured() {
		return reason
	}
	d.poisoned = true
	return errors.Join(reason, i.config.PoisonQueue.publish(d.msg, reason))
}

// Plugin is a router plugin: at start it refuses a name in InboxConfig.Handlers that the router does not
// know, and a store that cannot work (missing table, missing column, read-only role, closed database).
func (i *Inbox) Plugin(router *message.Router) error {
	if err := i.handlers.checkNames(router.Handlers()); err != nil {
		return err
	}
	checker, ok := i.config.Store.(Checker)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeCheckTimeout)
	defer cancel()
	if err := checker.Check(ctx); err != nil {
		return fmt.Errorf("inbox store is not usable: %w", err)
	}
	return nil
}

const storeCheckTimeout = 30 * time.Second
