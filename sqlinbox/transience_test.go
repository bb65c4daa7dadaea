//go:build !embedded

package sqlinbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// A call to another system fails with the same types as the way to the database does. While the transaction's
// own connection works, that is a failure of the handler, and belongs into the poison queue after its retries.
func TestANetworkErrorOfAnotherSystemIsTheHandlersOwnFailure(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"HTTP":     &url.Error{Op: "Get", URL: "bogus://shop", Err: errors.New("unsupported protocol scheme")},
		"TCP":      &net.OpError{Op: "dial", Err: errors.New("connection refused")},
		"body":     fmt.Errorf("cannot read the body: %w", io.ErrUnexpectedEOF),
		"deadline": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				ledger := newLedger(t, database)
				_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
					return errors.Join(effect(ctx), failure)
				})
				require.ErrorIs(t, err, failure)
				require.False(t, middleware.IsTransient(err))
				ledger.requireEffects(t, 0)
				ledger.requireEntries(t, 0)
			})
		})
	}
}

// A handler need not wrap what its statements returned: the connection itself tells that it is lost.
func TestALostConnectionIsTransientWhateverTheHandlerReturns(t *testing.T) {
	t.Parallel()
	ledger := newLedger(t, testdb.PostgreSQL())
	_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
		tx, _ := sqlinbox.TxFromContext(ctx)
		var backend int
		require.NoError(t, tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&backend))
		_, err := ledger.db.Exec(`SELECT pg_terminate_backend($1)`, backend)
		require.NoError(t, err)
		require.Error(t, effect(ctx))
		return errors.New("cannot save the invoice")
	})
	require.ErrorContains(t, err, "cannot save the invoice")
	require.True(t, middleware.IsTransient(err))
	ledger.requireEffects(t, 0)
	ledger.requireEntries(t, 0)
}

// Drivers answer a cancelled statement with errors of their own. Router and poison queue look for
// context.Canceled.
func TestACancelledDeliverySaysSoWhateverTheHandlerReturns(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := ledger.Process(ctx, entry("1"), func(ctx context.Context) error {
			cancel()
			require.Error(t, effect(ctx))
			return errors.New("cannot save the invoice")
		})
		require.ErrorContains(t, err, "cannot save the invoice")
		require.ErrorIs(t, err, context.Canceled)
		ledger.requireEffects(t, 0)
		ledger.requireEntries(t, 0)
		eventually(t, "the connection to come back", func() bool { return ledger.db.Stats().InUse == 0 })
	})
}
