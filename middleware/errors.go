package middleware

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Each sentinel is found by errors.Is in the error that the middleware returns.
var (
	// ErrCollision is returned for OutcomeCollision when no poison queue is configured.
	ErrCollision = errors.New("message key is known with another payload")
	// ErrLate is returned for OutcomeLate when no poison queue is configured.
	ErrLate = errors.New("message is older than the consumer's horizon")
	// ErrUnidentified is returned for OutcomeUnidentified when no poison queue is configured.
	ErrUnidentified = errors.New("message cannot be identified")
	// ErrUnsupportedContract is returned for OutcomeUnsupportedContract when no poison queue is configured.
	ErrUnsupportedContract = errors.New("contract version is not accepted")
	// ErrInFlight is returned when another delivery holds the key for longer than the store waits. It is
	// transient.
	ErrInFlight = errors.New("another delivery of the key is in flight")

	// ErrAckedBeforeCommit is returned when a message reaches the inbox already acked, so that a failure
	// could not be redelivered any more.
	ErrAckedBeforeCommit = errors.New("message was acked before the inbox could commit; remove InstantAck, and any handler or middleware that calls msg.Ack, from before the inbox")
	// ErrNestedInbox is returned when an inbox runs inside another one: the inner could commit what the
	// outer rolls back.
	ErrNestedInbox = errors.New("inbox inside an inbox; add Inbox.Middleware once to the router or once to the handler, not to both")
	// ErrNoHandlerName is returned when the message's context names no handler, so there is no consumer.
	ErrNoHandlerName = errors.New("no handler name in the message's context; the inbox must run in a Watermill router, as a middleware of the handler")
	// ErrNoOutbox is returned when a handler returns messages and the inbox has no Outbox: they would be
	// published outside the transaction.
	ErrNoOutbox = errors.New("handler returned messages, but the inbox has no outbox; set InboxConfig.Outbox so that they join the transaction, or return none")
)

// errContextEnded is transient: the next delivery has a context of its own.
var errContextEnded = errors.New("message's context had ended before it reached the inbox; if a Timeout is inside of a Retry, set Retry.ResetContextOnRetry")

// DeliveryError says why a delivery was not accepted. Its Unwrap gives the sentinel of the outcome.
type DeliveryError struct {
	Outcome    Outcome
	Consumer   string
	MessageKey string

	// PayloadHash is the hash of the delivered message, StoredHash the one of the entry. Either may be
	// empty where the outcome has none.
	PayloadHash string
	StoredHash  string

	// AcceptedAt is when the entry that was found was processed. Zero where there is none.
	AcceptedAt time.Time
	// ResultReference is the result of the entry that was found, if its handler set one.
	ResultReference string

	// Cause is the detail behind the outcome, such as an extractor's error. It may be nil.
	Cause error
}

// Error names the outcome, the consumer, the key and the cause.
func (e *DeliveryError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s (consumer %q", e.Outcome, e.sentinel(), e.Consumer)
	if e.MessageKey != "" {
		fmt.Fprintf(&text, ", message key %q", e.MessageKey)
	}
	if e.StoredHash != "" {
		fmt.Fprintf(&text, ", accepted at %s with payload hash %s, now %s",
			e.AcceptedAt.UTC().Format(time.RFC3339Nano), e.StoredHash, e.PayloadHash)
	}
	text.WriteString(")")
	if e.Cause != nil {
		fmt.Fprintf(&text, ": %s", e.Cause)
	}
	return text.String()
}

// Unwrap gives the sentinel of the outcome and the cause.
func (e *DeliveryError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.sentinel()}
	}
	return []error{e.sentinel(), e.Cause}
}

func (e *DeliveryError) sentinel() error {
	switch e.Outcome {
	case OutcomeCollision:
		return ErrCollision
	case OutcomeLate:
		return ErrLate
	case OutcomeUnsupportedContract:
		return ErrUnsupportedContract
	case OutcomeInFlight:
		return ErrInFlight
	case OutcomeError:
		return ErrAckedBeforeCommit
	default:
		return ErrUnidentified
	}
}

// IsPoison tells whether err is of a delivery that cannot succeed when it is delivered again: collision,
// late, unidentified or unsupported contract. It fits Watermill's PoisonQueueWithFilter, for users who
// configure the poison queue there instead of in the inbox.
func IsPoison(err error) bool {
	var delivery *DeliveryError
	return errors.As(err, &delivery) && delivery.Outcome.poisons()
}

// IsTransient tells whether err is of a delivery that can come to its outcome later as it is: another delivery
// of the key is in flight, the poison queue cannot be reached, the message's context had ended, or the store
// says so of its database (an error with Transient() bool).
func IsTransient(err error) bool {
	if errors.Is(err, ErrInFlight) || errors.Is(err, errPoisonPublish) || errors.Is(err, errContextEnded) {
		return true
	}
	var transient interface{ Transient() bool }
	return errors.As(err, &transient) && transient.Transient()
}
