package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// Cause is the message that a handler is working on, for what it produces.
type Cause struct {
	Consumer      string
	MessageKey    string
	CorrelationID string
}

type causeKey struct{}

// CauseFromContext returns the cause that the context of a handler behind an inbox carries.
func CauseFromContext(ctx context.Context) (Cause, bool) {
	cause, ok := ctx.Value(causeKey{}).(*Cause)
	if !ok {
		return Cause{}, false
	}
	return *cause, true
}

func withCause(ctx context.Context, entry Entry, msg *message.Message) context.Context {
	return context.WithValue(ctx, causeKey{}, &Cause{
		Consumer:      entry.Consumer,
		MessageKey:    entry.MessageKey,
		CorrelationID: wmmiddleware.MessageCorrelationID(msg),
	})
}
