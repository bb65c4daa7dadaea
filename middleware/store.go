package middleware

import (
	"context"
	"time"
)

// Store is all that an Inbox needs from a database.
//
// A Store is safe for concurrent use.
type Store interface {
	// Process records entry and runs effect in one transaction, which effect's context carries. Both are
	// kept or neither is: when effect returns an error, panics or ends its goroutine, when ctx is done, or
	// when the commit fails or its answer is lost, Process does not report Accepted.
	//
	// When the entry's key or business key is already known, effect does not run and the receipt says
	// which entry it was. When another delivery holds the key for longer than the store waits, effect does
	// not run and the receipt says Held. Neither is an error.
	//
	// Process may run effect more than once, each time in a fresh transaction, when the database ended the
	// transaction before for a reason that a second try can cure (serialization failure, deadlock).
	//
	// An error of effect is returned so that errors.Is and errors.As find it. Other errors have a method
	// Transient() bool when the same delivery can succeed later.
	Process(ctx context.Context, entry Entry, effect func(ctx context.Context) error) (Receipt, error)
}

// CollisionStore is a Store that also keeps evidence of collisions, so that ten thousand deliveries of
// one colliding message are one row with a count and one poisoned message.
type CollisionStore interface {
	Store

	// RecordCollision counts one delivery of the collision. For the first one, and for the first one with
	// another Redriven, it calls publish before the count is kept; when publish fails, nothing is counted and
	// its error is returned. A crash between the two may publish a second copy, never none.
	RecordCollision(ctx context.Context, collision Collision, publish func(ctx context.Context) error) error
}

// Checker is a Store that can tell at start whether it will be able to work.
type Checker interface {
	// Check returns an error that names what is missing and its cure.
	Check(ctx context.Context) error
}

// Entry is one message accepted by one consumer, as it is recorded.
type Entry struct {
	// Consumer and MessageKey together identify the entry.
	Consumer   string
	MessageKey string

	// BusinessKey identifies the business action across messages of this consumer. Empty: none.
	BusinessKey string

	// PayloadHash is the self-describing text that package hashing makes.
	PayloadHash string

	EventType       string
	Source          string
	ContractVersion string
	TenantID        string

	// ReceivedAt is when the delivery reached the inbox, by this process's clock.
	ReceivedAt time.Time

	// OccurredAt is the producer's time of the message. Zero: not known.
	OccurredAt time.Time

	// Retention is how long the entry is kept, by the database's clock. Zero keeps it for ever.
	Retention time.Duration
}

// Receipt is what a Store found when it was asked to process an entry.
type Receipt struct {
	// Disposition says which of the store's four answers this is.
	Disposition Disposition

	// Stored is the entry that was found. It is set for KnownByKey and KnownByBusinessKey.
	Stored StoredEntry
}

// Disposition is a store's answer. Whether a known key is a duplicate or a collision is decided
// by the Inbox, with the hashes.
type Disposition int

const (
	// Accepted means that the entry was new, effect ran and both are committed.
	Accepted Disposition = iota + 1
	// KnownByKey means that this consumer has an entry with this message key.
	KnownByKey
	// KnownByBusinessKey means that this consumer has accepted the business key under another message
	// key. The new message key is recorded as a duplicate of that entry.
	KnownByBusinessKey
	// Held means that another delivery holds the key or the business key for longer than the store waits.
	Held
	// PastHorizon means that there is no entry, and that the message is older than the consumer's
	// horizon, so that its entry may have been purged.
	PastHorizon
)

// IsKnown tells whether the key is in the database after this answer.
func (d Disposition) IsKnown() bool {
	return d == Accepted || d == KnownByKey || d == KnownByBusinessKey
}

// StoredEntry is what is known of an entry that was accepted before.
type StoredEntry struct {
	MessageKey      string
	PayloadHash     string
	ReceivedAt      time.Time
	ProcessedAt     time.Time
	ResultReference string

	// DuplicateOf is the message key of the first entry with the same business key. Empty: this entry
	// is the first itself.
	DuplicateOf string
}

// Collision is the evidence of one message that came with a known key and another payload.
type Collision struct {
	Consumer    string
	MessageKey  string
	PayloadHash string
	StoredHash  string
	AcceptedAt  time.Time

	// Redriven is how often the message was redriven, by its own account.
	Redriven int
}
