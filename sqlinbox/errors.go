package sqlinbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
)

// transientError tells middleware.IsTransient that the same delivery can succeed later.
type transientError struct{ error }

func (e transientError) Transient() bool { return true }

func (e transientError) Unwrap() error { return e.error }

// misuse is a mistake in how the library is put together. Neither a retry nor the poison queue mends it:
// middleware.NewStack leaves such messages at the broker.
type misuse string

func (m misuse) Error() string { return string(m) }

// Misuse tells middleware.NewStack what kind of error this is.
func (m misuse) Misuse() bool { return true }

func withTransience(err error, class errorClass) error {
	if class == permanent {
		return err
	}
	return transientError{err}
}

// effectError is an error of the effect. Its type says nothing of the database: a handler calls other systems,
// too, and need not wrap what its statements returned. How the rollback went does.
type effectError struct {
	error
	rollback error
}

func (e effectError) Unwrap() error { return e.error }

func (e effectError) lostConnection() bool {
	return e.rollback != nil && !errors.Is(e.rollback, sql.ErrTxDone)
}

// isConnectionFailure knows the errors without a code by which the way to the database fails.
func isConnectionFailure(err error) bool {
	var network net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// commitError says what is known after a COMMIT that did not succeed: mostly, nothing.
func commitError(ctx context.Context, err error) error {
	if (errors.Is(err, sql.ErrTxDone) || errors.Is(err, ErrTransactionEnded)) && ctx.Err() == nil {
		return ErrTransactionEnded
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		return fmt.Errorf("delivery ended before the commit: %w", errors.Join(ctxErr, err))
	}
	return fmt.Errorf("cannot commit; if a statement of the handler failed, return its error from the handler, and leave COMMIT or ROLLBACK to the inbox: %w", err)
}

// rollBack ends the transaction of a handler that failed with cause. It adds what the handler may have done
// wrong besides: if it has committed, the next delivery is a duplicate.
func rollBack(ctx context.Context, tx *sql.Tx, cause error) error {
	rollback := tx.Rollback()
	if errors.Is(rollback, sql.ErrTxDone) && ctx.Err() == nil {
		cause = errors.Join(cause, ErrTransactionEnded)
	}
	return effectError{cause, rollback}
}

// endedDelivery adds to err that the delivery's context has ended: what drivers then return need not say so,
// and who reads the error must not take it for a failure of the handler. If the handler had not begun, the
// delivery only came to nothing.
func endedDelivery(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errBeforeEffect):
		return transientError{fmt.Errorf("delivery ended before its handler began: %w", errors.Join(ctx.Err(), err))}
	case errors.Is(err, ctx.Err()):
		return err
	default:
		return fmt.Errorf("delivery ended: %w", errors.Join(ctx.Err(), err))
	}
}

// endedWhileWaiting is nil when the wait came to its own end.
func endedWhileWaiting(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return transientError{fmt.Errorf("delivery ended while it waited for another one of its key: %w", ctx.Err())}
}
