package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

var (
	// ErrNoTransaction is returned when a context carries no transaction of an inbox.
	ErrNoTransaction error = misuse("no transaction in context; is Inbox.Middleware added to the router or to this handler?")

	// ErrRepeatedCall is returned when a handler is called a second time in one transaction, so that what
	// the first call wrote would be committed as well.
	ErrRepeatedCall error = misuse("handler was called again in the same transaction; Retry belongs outside of the inbox: Recoverer, PoisonQueue, Retry, Timeout, Inbox, handler")

	// ErrHiddenFailure is returned when the handler failed, but something between it and the inbox made a
	// success of that.
	ErrHiddenFailure error = misuse("handler failed, but a middleware between the inbox and the handler hid the error (PoisonQueue or Recoverer inside the inbox, or cqrs with AckCommandHandlingErrors); it belongs outside of the inbox")

	// ErrSkippedCall is returned when something between the inbox and a handler that Handler or
	// NoPublishHandler made answers in its place, so that the message would be recorded without its effect.
	ErrSkippedCall error = misuse("handler was not called, because a middleware between the inbox and the handler answered in its place; a filter belongs outside of the inbox, and a Deduplicator nowhere: the inbox does its work")

	// ErrTransactionEnded is returned when the handler itself ended the transaction of the inbox.
	ErrTransactionEnded error = misuse("handler ended the inbox's transaction; leave Commit and Rollback to the inbox, and return an error to roll back")
)

// unitOfWork is one transaction of the inbox with what was noted of the handler that runs in it.
type unitOfWork struct {
	tx         *sql.Tx
	store      *Store
	consumer   string
	messageKey string

	mu      sync.Mutex
	called  map[string]bool
	failure error

	produced     map[string]bool // messages in the outbox, by topic and UUID
	producedUUID int             // UUIDs that were derived
}

type unitOfWorkKey struct{}

func unitOfWorkFrom(ctx context.Context) (*unitOfWork, bool) {
	unit, ok := ctx.Value(unitOfWorkKey{}).(*unitOfWork)
	return unit, ok
}

// TxFromContext returns the transaction of the inbox that the message's context carries. It is valid until
// the handler returns. The caller must neither commit nor roll it back.
func TxFromContext(ctx context.Context) (*sql.Tx, bool) {
	unit, ok := unitOfWorkFrom(ctx)
	if !ok {
		return nil, false
	}
	return unit.tx, true
}

// Handler makes a Watermill handler of a function that gets the transaction of the inbox as an argument.
//
// Without an inbox it fails with ErrNoTransaction and does not call fn. It guards the transaction: a second
// call in the same one fails with ErrRepeatedCall, and a failure of fn is committed by no means, even if a
// middleware between the inbox and the handler turns it into a success. Once it was called in this process, a
// message of the same consumer for which it is not called is refused with ErrSkippedCall.
func Handler(fn func(tx *sql.Tx, msg *message.Message) ([]*message.Message, error)) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		err = guardHandler(msg.Context(), func(tx *sql.Tx) error {
			produced, err = fn(tx, msg)
			return err
		})
		return produced, err
	}
}

// NoPublishHandler is Handler for a function that returns no messages.
func NoPublishHandler(fn func(tx *sql.Tx, msg *message.Message) error) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		return guardHandler(msg.Context(), func(tx *sql.Tx) error {
			return fn(tx, msg)
		})
	}
}

// guardHandler is Guard for a whole handler. Unlike a cqrs handler, which is called for its own events only,
// it is called for every message of its consumer: from its first call on, the store knows that.
func guardHandler(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if unit, ok := unitOfWorkFrom(ctx); ok {
		unit.store.guarded.Store(unit.consumer, nil)
	}
	return Guard(ctx, wholeHandler, fn)
}

// wholeHandler is the name under which guardHandler notes its calls.
const wholeHandler = ""

// Guard calls fn with the transaction of the inbox and notes how that ends: the inbox refuses to commit after
// fn has failed, or after Guard was called twice with one name in the same transaction. It is for cqrs
// hooks (OnHandle), with the handler's name as name.
//
// It returns ErrNoTransaction, ErrRepeatedCall or the error of fn. It is safe for concurrent use, as far as
// the driver's transaction is.
func Guard(ctx context.Context, name string, fn func(tx *sql.Tx) error) error {
	unit, ok := unitOfWorkFrom(ctx)
	if !ok {
		return ErrNoTransaction
	}
	if err := unit.enter(name); err != nil {
		return err
	}

	err := fmt.Errorf("handler %q did not return", name) // stands if fn panics or ends its goroutine
	defer func() {
		if err != nil {
			unit.fail(err)
		}
	}()
	err = fn(unit.tx)
	return err
}

func (u *unitOfWork) enter(name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.called[name] {
		u.failure = ErrRepeatedCall
		return ErrRepeatedCall
	}
	if u.called == nil {
		u.called = map[string]bool{}
	}
	u.called[name] = true
	return nil
}

func (u *unitOfWork) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failure == nil {
		u.failure = err
	}
}

// noteProduced tells whether no message with this key was produced before.
func (u *unitOfWork) noteProduced(key string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.produced[key] {
		return false
	}
	if u.produced == nil {
		u.produced = map[string]bool{}
	}
	u.produced[key] = true
	return true
}

// nextProduced counts the messages that came without a UUID.
func (u *unitOfWork) nextProduced() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.producedUUID++
	return u.producedUUID
}

// refusal is the reason not to commit although the effect reports success.
func (u *unitOfWork) refusal() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, guarded := u.store.guarded.Load(u.consumer)
	switch {
	case u.failure == nil && guarded && !u.called[wholeHandler]:
		return ErrSkippedCall
	case u.failure == nil:
		return nil
	case errors.Is(u.failure, ErrRepeatedCall):
		return u.failure
	default:
		return fmt.Errorf("%w: %w", ErrHiddenFailure, u.failure)
	}
}

// SetResult sets the result reference of the entry in whose transaction ctx is, such as "task/123". A
// duplicate's receipt carries it. The last call wins.
//
// It returns ErrNoTransaction without an inbox, and an error for a reference that not every database can
// keep: more than 255 bytes, invalid UTF-8 or NUL.
func SetResult(ctx context.Context, reference string) error {
	unit, ok := unitOfWorkFrom(ctx)
	if !ok {
		return ErrNoTransaction
	}
	return unit.store.setResult(ctx, unit, reference)
}
