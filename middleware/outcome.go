package middleware

// Outcome is what one delivery came to.
type Outcome string

const (
	// OutcomeAccepted: the key is new; the effect ran and is committed with the entry. Acked.
	OutcomeAccepted Outcome = "accepted"
	// OutcomeDuplicate: this consumer has accepted the same key with an equal payload. Acked.
	OutcomeDuplicate Outcome = "duplicate"
	// OutcomeSemanticDuplicate: the key is new, but this consumer has accepted its business key under
	// another message key. The new key is recorded and points to the first entry. Acked.
	OutcomeSemanticDuplicate Outcome = "semantic_duplicate"
	// OutcomeCollision: this consumer has accepted the same key with another payload. Poisoned.
	OutcomeCollision Outcome = "collision"
	// OutcomeLate: there is no entry, but the message is older than the consumer's horizon, so it cannot
	// be proved new. Poisoned.
	OutcomeLate Outcome = "late"
	// OutcomeUnidentified: no usable key or no payload hash can be made of the message. Poisoned.
	OutcomeUnidentified Outcome = "unidentified"
	// OutcomeUnsupportedContract: the handler does not accept the message's contract version. Poisoned.
	OutcomeUnsupportedContract Outcome = "unsupported_contract"
	// OutcomeInFlight: another delivery holds the key for longer than the store waits. Nacked.
	OutcomeInFlight Outcome = "in_flight"
	// OutcomeError: the handler or the database failed and everything is rolled back, or the delivery was
	// refused before the handler. Nacked.
	OutcomeError Outcome = "error"
)

// poisons tells whether messages with this outcome belong into the poison queue: delivering them again
// cannot make them succeed.
func (o Outcome) poisons() bool {
	switch o {
	case OutcomeCollision, OutcomeLate, OutcomeUnidentified, OutcomeUnsupportedContract:
		return true
	default:
		return false
	}
}
