package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// handlerFault is something that a handler does after its effect, in the first delivery only.
type handlerFault struct {
	name string
	do   func(tx *sql.Tx, msg *message.Message) error

	// says is in the error of the delivery.
	says string
	// commits is true where the fault itself committed entry and effect, so that the redelivery is a duplicate.
	commits bool
}

var errBroken = errors.New("the handler is broken")

func handlerFaults() []handlerFault {
	return []handlerFault{
		{
			name: "returns an error",
			do:   func(*sql.Tx, *message.Message) error { return errBroken },
			says: errBroken.Error(),
		},
		{
			name: "panics",
			do:   func(*sql.Tx, *message.Message) error { panic("broken") },
			says: `handler "billing" panicked`,
		},
		{
			name: "ends its goroutine",
			do: func(*sql.Tx, *message.Message) error {
				runtime.Goexit()
				return nil
			},
			says: `handler "billing" ended its goroutine with runtime.Goexit`,
		},
		{
			name: "returns nil after its context was cancelled",
			do: func(_ *sql.Tx, msg *message.Message) error {
				cancel(msg)
				return nil
			},
			says: "delivery ended before the commit: context canceled",
		},
		{
			name: "returns the error of its cancelled context",
			do: func(_ *sql.Tx, msg *message.Message) error {
				cancel(msg)
				return msg.Context().Err()
			},
			says: "context canceled",
		},
		{
			name: "fails in a statement after its context was cancelled",
			do: func(tx *sql.Tx, msg *message.Message) error {
				cancel(msg)
				_, err := tx.ExecContext(msg.Context(), `INSERT INTO effects (id) VALUES ('late')`)
				return err
			},
			says: "context canceled",
		},
		{
			name: "commits and returns nil",
			do:   func(tx *sql.Tx, _ *message.Message) error { return tx.Commit() },
			says: "handler ended the inbox's transaction", commits: true,
		},
		{
			name: "commits and returns an error",
			do:   func(tx *sql.Tx, _ *message.Message) error { return errors.Join(tx.Commit(), errBroken) },
			says: "handler ended the inbox's transaction", commits: true,
		},
		{
			name: "rolls back and returns nil",
			do:   func(tx *sql.Tx, _ *message.Message) error { return tx.Rollback() },
			says: "handler ended the inbox's transaction",
		},
		{
			name: "runs COMMIT as a statement",
			do: func(tx *sql.Tx, _ *message.Message) error {
				_, err := tx.Exec(`COMMIT`)
				return err
			},
			says: "COMMIT or ROLLBACK", commits: true,
		},
		{
			name: "runs ROLLBACK as a statement",
			do: func(tx *sql.Tx, _ *message.Message) error {
				_, err := tx.Exec(`ROLLBACK`)
				return err
			},
			says: "COMMIT or ROLLBACK",
		},
		{
			name: "violates a constraint that is checked at the commit",
			do: func(tx *sql.Tx, _ *message.Message) error {
				_, err := tx.Exec(`INSERT INTO children (parent) VALUES (7)`)
				return err
			},
			says: "cannot commit",
		},
	}
}

func TestAHandlerThatFailsLeavesEntryAndEffectTogetherOrNeitherAndIsRedelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		for _, fault := range handlerFaults() {
			t.Run(fault.name, func(t *testing.T) {
				t.Parallel()
				requireRedelivery(t, database, fault)
			})
		}
	})
}

// requireRedelivery delivers a message whose handler fails at first and then works.
func requireRedelivery(t *testing.T, database testdb.Database, fault handlerFault) {
	t.Helper()
	ledger := newLedger(t, database)
	createTableWithDeferredConstraint(t, ledger.db)
	var calls atomic.Int32
	s := newServiceOn(t, ledger, inTransaction(func(tx *sql.Tx, msg *message.Message) error {
		if calls.Add(1) == 1 {
			return fault.do(tx, msg)
		}
		return nil
	}), func(c *serviceConfig) {
		c.outside = []message.HandlerMiddleware{cancellable}
		c.watched = true
	})

	s.deliver(t, newOrder("1", `{}`))

	second := middleware.OutcomeAccepted
	between := balance{}
	if fault.commits {
		second = middleware.OutcomeDuplicate
		between = balance{entries: 1, effects: 1}
	}
	require.Equal(t, []middleware.Outcome{middleware.OutcomeError, second}, s.outcomes())
	require.ErrorContains(t, s.deliveries()[0].Err, fault.says)
	require.Equal(t, between, s.atStart(1), "after the fault")
	ledger.requireEntries(t, 1)
	ledger.requireEffects(t, 1)

	s.deliver(t, newOrder("2", `{}`))
	require.Equal(t, middleware.OutcomeAccepted, s.outcomes()[2], "the connection is usable")
	ledger.requireEntries(t, 2)
	ledger.requireEffects(t, 2)
	// database/sql takes the connection of a cancelled transaction back in a goroutine of its own.
	require.Eventually(t, func() bool { return ledger.db.Stats().InUse == 0 }, patience, time.Millisecond, "a connection leaks")
}

func createTableWithDeferredConstraint(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, statement := range []string{
		`CREATE TABLE parents (id integer PRIMARY KEY)`,
		`CREATE TABLE children (parent integer REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)`,
	} {
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	_, _ = db.Exec(`PRAGMA foreign_keys = ON`) // SQLite asks for it
}

type cancelKey struct{}

// cancellable is a middleware that lets the handler cancel its own delivery, as a timeout would. It does not cancel
// by itself: what a handler leaves behind must end without that.
func cancellable(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithCancel(msg.Context())
		msg.SetContext(context.WithValue(ctx, cancelKey{}, cancel))
		return h(msg)
	}
}

func cancel(msg *message.Message) {
	msg.Context().Value(cancelKey{}).(context.CancelFunc)()
}

func TestAUniqueViolationOfTheHandlersOwnTableIsTheHandlersError(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		_, err := ledger.db.Exec(`CREATE TABLE invoices (number integer PRIMARY KEY)`)
		require.NoError(t, err)
		var violation error
		var calls atomic.Int32
		s := newServiceOn(t, ledger, inTransaction(func(tx *sql.Tx, _ *message.Message) error {
			number := calls.Add(1)
			if number == 2 {
				number = 1
			}
			_, err := tx.Exec(`INSERT INTO invoices (number) VALUES ($1)`, number)
			if err != nil {
				violation = err
			}
			return err
		}), func(c *serviceConfig) { c.watched = true })

		s.deliver(t, newOrder("1", `{}`))
		s.deliver(t, newOrder("2", `{}`))

		require.Equal(t, []middleware.Outcome{middleware.OutcomeAccepted, middleware.OutcomeError, middleware.OutcomeAccepted}, s.outcomes())
		require.ErrorIs(t, s.deliveries()[1].Err, violation)
		require.False(t, middleware.IsTransient(s.deliveries()[1].Err))
		require.Equal(t, balance{entries: 1, effects: 1}, s.atStart(2))
		ledger.requireEntries(t, 2)
		ledger.requireEffects(t, 2)
	})
}

func TestAHandlerThatEndsTheTransactionIsToldSo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
			tx, _ := sqlinbox.TxFromContext(ctx)
			return tx.Rollback()
		})
		require.ErrorIs(t, err, sqlinbox.ErrTransactionEnded)
		require.False(t, middleware.IsTransient(err))
	})
}
