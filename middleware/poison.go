package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// PoisonQueue is where messages go that can never be processed as they are (elsewhere: dead-letter queue,
// DLQ). The inbox publishes there before the message is acked: if publishing fails, the message is nacked.
//
// The publisher must not return before the broker has taken the message; with watermill-amqp that is
// PublisherConfig.ConfirmDelivery.
type PoisonQueue struct {
	// Publisher and Topic are set together or not at all. Without them the middleware returns a
	// DeliveryError, which Watermill's PoisonQueueWithFilter(pub, topic, middleware.IsPoison), added
	// outside of the inbox, publishes as well.
	Publisher message.Publisher
	Topic     string
}

func (q PoisonQueue) configured() bool {
	return q.Publisher != nil
}

func (q PoisonQueue) validate() error {
	switch {
	case q.Publisher == nil && q.Topic != "":
		return fmt.Errorf("poison queue: topic %q has no publisher; set PoisonQueue.Publisher", q.Topic)
	case q.Publisher != nil && q.Topic == "":
		return errors.New("poison queue: topic is empty; set PoisonQueue.Topic")
	case q.Publisher != nil && isNil(q.Publisher):
		return fmt.Errorf("poison queue: publisher is a nil %T; look for the error of its constructor", q.Publisher)
	default:
		return nil
	}
}

// Metadata names of the evidence that a poisoned message carries besides Watermill's own poison keys
// (reason_poisoned, topic_poisoned, handler_poisoned, subscriber_poisoned). The inbox sets or removes each
// of them: what an incoming message claims under these names does not reach the poison queue.
const (
	PoisonOutcomeKey         = "inbox_outcome"
	PoisonConsumerKey        = "inbox_consumer"
	PoisonMessageKeyKey      = "inbox_message_key"
	PoisonPayloadHashKey     = "inbox_payload_hash"
	PoisonStoredHashKey      = "inbox_stored_hash"
	PoisonAcceptedAtKey      = "inbox_accepted_at"
	PoisonResultReferenceKey = "inbox_result_reference"
	PoisonedAtKey            = "inbox_poisoned_at"
)

// publish sends a copy of msg with the evidence of why it was poisoned. Identity, payload and the rest of
// the metadata stay as they are.
func (q PoisonQueue) publish(msg *message.Message, reason *DeliveryError) error {
	ctx := msg.Context()
	poisoned := msg.Copy()

	poisoned.Metadata.Set(wmmiddleware.ReasonForPoisonedKey, reason.Error())
	poisoned.Metadata.Set(wmmiddleware.PoisonedTopicKey, message.SubscribeTopicFromCtx(ctx))
	poisoned.Metadata.Set(wmmiddleware.PoisonedHandlerKey, message.HandlerNameFromCtx(ctx))
	poisoned.Metadata.Set(wmmiddleware.PoisonedSubscriberKey, message.SubscriberNameFromCtx(ctx))

	acceptedAt := ""
	if !reason.AcceptedAt.IsZero() {
		acceptedAt = reason.AcceptedAt.UTC().Format(time.RFC3339Nano)
	}
	for name, value := range map[string]string{
		PoisonOutcomeKey:         string(reason.Outcome),
		PoisonConsumerKey:        reason.Consumer,
		PoisonMessageKeyKey:      reason.MessageKey,
		PoisonPayloadHashKey:     reason.PayloadHash,
		PoisonStoredHashKey:      reason.StoredHash,
		PoisonAcceptedAtKey:      acceptedAt,
		PoisonResultReferenceKey: reason.ResultReference,
		PoisonedAtKey:            time.Now().UTC().Format(time.RFC3339Nano),
	} {
		if value == "" {
			delete(poisoned.Metadata, name)
			continue
		}
		poisoned.Metadata.Set(name, value)
	}

	if err := q.Publisher.Publish(q.Topic, poisoned); err != nil {
		return fmt.Errorf("%w %q: %w", errPoisonPublish, q.Topic, err)
	}
	return nil
}

var errPoisonPublish = errors.New("cannot publish to the poison queue")
