package middleware

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill"
)

// log writes one line for a delivery that needs one: duplicates at debug, in flight and errors at info
// (the router or the retry middleware logs the error itself), what was poisoned or acked too early at error.
// Payloads are never logged.
func (d *delivery) log() {
	logger := d.inbox.config.Logger
	if d.acked {
		logger.Error("Message acked before the inbox committed: a failed commit would have lost it", ErrAckedBeforeCommit, d.logFields())
	}
	switch {
	case d.outcome == OutcomeAccepted:
		logger.Trace("Inbox accepted message", d.logFields())
	case d.outcome == OutcomeDuplicate && d.incomparable:
		logger.Info("Inbox acked duplicate whose stored hash cannot be compared", d.logFields())
	case d.outcome == OutcomeDuplicate, d.outcome == OutcomeSemanticDuplicate:
		logger.Debug("Inbox found duplicate", d.logFields())
	case d.outcome.poisons() && d.reason != nil && d.poisoned:
		logger.Error("Inbox poisoned message", d.reason, d.logFields())
	case d.outcome.poisons() && d.reason != nil:
		// Counted with the evidence; the first delivery of this collision said it loudly.
		logger.Info("Inbox counted another delivery of a poisoned message", d.logFields())
	case d.outcome.poisons():
		logger.Error("Inbox refused message", d.err, d.logFields())
	default:
		logger.Info("Inbox rolled back delivery", d.logFields().Add(watermill.LogFields{"error": errorText(d.err)}))
	}
}

func (d *delivery) logFields() watermill.LogFields {
	return watermill.LogFields{
		"handler_name": d.handlerName,
		"consumer":     d.handler.Consumer,
		"message_uuid": d.msg.UUID,
		"message_key":  d.entry.MessageKey,
		"outcome":      string(d.outcome),
		"hash":         shortHash(d.entry.PayloadHash),
	}
}

// shortHash is the first twelve characters of the digest: enough to tell two payloads apart by eye.
func shortHash(payloadHash string) string {
	digest := payloadHash[strings.LastIndexByte(payloadHash, ':')+1:]
	return digest[:min(len(digest), 12)]
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
