package sqlinbox_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// sharedFile is a ledger on a SQLite file and a connection of somebody else to the same file.
func sharedFile(t *testing.T, journal string) (ledger, *sql.Conn) {
	t.Helper()
	dsn := "file:" + filepath.Join(t.TempDir(), "inbox.db") + "?_pragma=busy_timeout(1)&_pragma=journal_mode(" + journal + ")"
	open := func(t testing.TB) *sql.DB {
		db, err := sql.Open("sqlite", dsn)
		require.NoError(t, err)
		db.SetMaxOpenConns(1)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	ledger := newLedger(t, testdb.Database{Dialect: sqlinbox.SQLite{}, Open: open}, inFlightWait(50*time.Millisecond))
	other, err := open(t).Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close() })
	return ledger, other
}

func execOn(t *testing.T, conn *sql.Conn, statement string) {
	t.Helper()
	_, err := conn.ExecContext(t.Context(), statement)
	require.NoError(t, err)
}

func TestADeliveryIsHeldWhileAnotherConnectionWritesToTheSQLiteFile(t *testing.T) {
	t.Parallel()
	ledger, writer := sharedFile(t, "WAL")
	execOn(t, writer, `BEGIN IMMEDIATE`)
	receipt, err := ledger.Process(t.Context(), entry("1"), func(context.Context) error {
		t.Error("the effect has run")
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, middleware.Held, receipt.Disposition)

	execOn(t, writer, `ROLLBACK`)
	receipt, err = ledger.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.Accepted, receipt.Disposition)
	ledger.requireEntries(t, 1)
	ledger.requireEffects(t, 1)
}

// With a rollback journal a reader keeps a writer from committing, and SQLite leaves the transaction open.
func TestAReaderInTheWayOfTheCommitIsATransientErrorAndLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	ledger, reader := sharedFile(t, "DELETE")
	execOn(t, reader, `BEGIN`)
	var n int
	require.NoError(t, reader.QueryRowContext(t.Context(), `SELECT count(*) FROM inbox`).Scan(&n))

	receipt, err := ledger.Process(t.Context(), entry("1"), effect)
	require.ErrorContains(t, err, "cannot commit")
	require.Zero(t, receipt)
	require.True(t, middleware.IsTransient(err))

	execOn(t, reader, `ROLLBACK`)
	receipt, err = ledger.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.Accepted, receipt.Disposition)
	ledger.requireEntries(t, 1)
	ledger.requireEffects(t, 1)
}
