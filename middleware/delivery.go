package middleware

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

// delivery is one arrival of a message at the inbox, until it is settled.
type delivery struct {
	inbox       *Inbox
	handlerName string
	handler     *HandlerConfig

	msg       *message.Message
	ctx       context.Context // the message's own context, restored when the delivery is settled
	delivered message.Payload // as it came; the subscriber may hold the same bytes for a redelivery
	payload   message.Payload // a copy of it
	metadata  message.Metadata

	receivedAt   time.Time
	entry        Entry
	outcome      Outcome
	incomparable bool
	acked        bool
	poisoned     bool
	reason       *DeliveryError // why a delivery that is acked was poisoned

	err      error
	returned bool
}

func newDelivery(i *Inbox, msg *message.Message) *delivery {
	ctx := msg.Context()
	handlerName := message.HandlerNameFromCtx(ctx)
	return &delivery{
		inbox:       i,
		handlerName: handlerName,
		handler:     i.handlers.get(handlerName),
		msg:         msg,
		ctx:         ctx,
		delivered:   msg.Payload,
		payload:     bytes.Clone(msg.Payload),
		metadata:    maps.Clone(msg.Metadata),
		receivedAt:  time.Now(),
		outcome:     OutcomeError,
	}
}

// refusal is the error of a delivery that must not reach the handler.
func (d *delivery) refusal() error {
	if d.handlerName == "" {
		return ErrNoHandlerName
	}
	if _, inside := CauseFromContext(d.ctx); inside {
		return ErrNestedInbox
	}
	if isAcked(d.msg) {
		return ErrAckedBeforeCommit
	}
	if err := d.ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", errContextEnded, err)
	}
	return nil
}

func isAcked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

// restoreMessage undoes what an earlier run of the handler did to the message. A retry must find the
// payload that was delivered: if the first try turns out to be committed after all, a changed payload
// would look like a collision with itself. Bytes that the handler changed in place are put back in place,
// because a redelivery may be made of them.
func (d *delivery) restoreMessage() {
	if !bytes.Equal(d.delivered, d.payload) {
		copy(d.delivered, d.payload)
	}
	d.msg.Payload = d.delivered
	if !maps.Equal(d.msg.Metadata, d.metadata) {
		d.msg.Metadata = maps.Clone(d.metadata)
	}
}

// compare tells whether the delivered message has the content that was accepted.
func (d *delivery) compare(storedHash string) (hashing.Verdict, error) {
	if storedHash == d.entry.PayloadHash {
		return hashing.Equal, nil
	}
	return d.handler.Hash.Compare(storedHash, d.msg)
}

func (d *delivery) duplicate(outcome Outcome, stored StoredEntry) error {
	d.outcome = outcome
	if d.handler.OnDuplicate == nil {
		return nil
	}
	err := d.handler.OnDuplicate(OnDuplicateParams{
		HandlerName: d.handlerName,
		Consumer:    d.entry.Consumer,
		Message:     d.msg,
		Outcome:     outcome,
		Stored:      stored,
	})
	if err != nil {
		return fmt.Errorf("OnDuplicate of handler %q: %w", d.handlerName, err)
	}
	return nil
}

func (d *delivery) failure(outcome Outcome, stored StoredEntry, cause error) *DeliveryError {
	d.outcome = outcome
	return &DeliveryError{
		Outcome:         outcome,
		Consumer:        d.entry.Consumer,
		MessageKey:      d.entry.MessageKey,
		PayloadHash:     d.entry.PayloadHash,
		StoredHash:      stored.PayloadHash,
		AcceptedAt:      stored.ProcessedAt,
		ResultReference: stored.ResultReference,
		Cause:           cause,
	}
}

func (d *delivery) collision(stored StoredEntry) Collision {
	return Collision{
		Consumer:    d.entry.Consumer,
		MessageKey:  d.entry.MessageKey,
		PayloadHash: d.entry.PayloadHash,
		StoredHash:  stored.PayloadHash,
		AcceptedAt:  stored.ProcessedAt,
		Redriven:    redrivenCount(d.msg),
	}
}

// settle ends the delivery on every way out of the middleware, a panic and runtime.Goexit included. The panic
// of a message that was acked already becomes the error that says so: going on, it would be retried.
func (d *delivery) settle(result *error) {
	var panicked any
	if !d.returned {
		panicked = recover()
		d.outcome = OutcomeError
		d.err = fmt.Errorf("handler %q ended its goroutine with runtime.Goexit; return an error instead", d.handlerName)
		if panicked != nil {
			d.err = fmt.Errorf("handler %q panicked: %v", d.handlerName, panicked)
		}
		d.msg.SetContext(d.ctx)
		d.err = d.inbox.fail(d, d.err)
	}
	if d.err != nil {
		d.restoreMessage()
	}
	d.acked = isAcked(d.msg)
	d.msg.SetContext(d.ctx)
	d.log()
	d.observe()

	switch {
	case panicked != nil && d.acked:
		*result = d.err
	case panicked != nil:
		panic(panicked)
	case !d.returned:
		// After Goexit the router's own code does not run any more: without this nack the message would
		// stay unsettled until the connection closes.
		d.msg.Nack()
	}
}

func (d *delivery) observe() {
	if d.inbox.config.Observer == nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			d.inbox.config.Logger.Error("Inbox observer panicked", fmt.Errorf("%v", r), d.logFields())
		}
	}()
	d.inbox.config.Observer.ObserveDelivery(DeliveryEvent{
		HandlerName:       d.handlerName,
		Consumer:          d.handler.Consumer,
		Outcome:           d.outcome,
		MessageKey:        d.entry.MessageKey,
		PayloadHash:       d.entry.PayloadHash,
		Incomparable:      d.incomparable,
		AckedBeforeCommit: d.acked,
		Poisoned:          d.poisoned,
		ReceivedAt:        d.receivedAt,
		Duration:          time.Since(d.receivedAt),
		Err:               d.err,
	})
}
