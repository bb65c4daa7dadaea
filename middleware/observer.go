package middleware

import "time"

// Observer is told once of every delivery, after the inbox has come to its outcome and before the router
// acks or nacks.
//
// An observer is called on the message's goroutine: it must return quickly and be safe for concurrent
// use. One that panics is logged and changes nothing.
type Observer interface {
	ObserveDelivery(event DeliveryEvent)
}

// DeliveryEvent is what an Observer learns of one delivery.
type DeliveryEvent struct {
	HandlerName string
	Consumer    string
	Outcome     Outcome

	// MessageKey is empty for a message without one. It comes from the message and is different for each:
	// it does not belong into a metric's labels.
	MessageKey string
	// PayloadHash is empty for a message that was not hashed.
	PayloadHash string

	// Incomparable is true for a duplicate whose stored hash was made by a scheme that this build does
	// not know, so that a change of the payload would not be seen.
	Incomparable bool
	// AckedBeforeCommit is true when the message was acked by someone else before its transaction was
	// committed: a failure of the commit would have lost it.
	AckedBeforeCommit bool
	// Poisoned is true when the message was published to the inbox's poison queue by this delivery.
	Poisoned bool

	ReceivedAt time.Time
	Duration   time.Duration

	// Err is what the middleware returned to the router. Nil means that the delivery will be acked.
	Err error
}
