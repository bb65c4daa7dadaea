package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// ledger is a Store on a fresh database with a table of effects.
type ledger struct {
	*sqlinbox.Store
	db *sql.DB
}

func newLedger(t *testing.T, database testdb.Database, change ...func(*sqlinbox.Config)) ledger {
	t.Helper()
	db := database.Open(t)
	config := sqlinbox.Config{Dialect: database.Dialect, InitializeSchema: true}
	for _, c := range change {
		c(&config)
	}
	store, err := sqlinbox.NewStore(db, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	_, err = db.Exec(`CREATE TABLE effects (id text NOT NULL)`)
	require.NoError(t, err)
	return ledger{Store: store, db: db}
}

// effect writes one row in the transaction of the inbox.
func effect(ctx context.Context) error {
	tx, ok := sqlinbox.TxFromContext(ctx)
	if !ok {
		return sqlinbox.ErrNoTransaction
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES ('effect')`)
	return err
}

func (l ledger) requireEffects(t *testing.T, want int) {
	t.Helper()
	require.Equal(t, want, l.count(t, "effects"), "effects")
}

func (l ledger) requireEntries(t *testing.T, want int) {
	t.Helper()
	require.Equal(t, want, l.count(t, "inbox"), "entries")
}

func (l ledger) count(t *testing.T, table string) int {
	t.Helper()
	var n int
	require.NoError(t, l.db.QueryRow(`SELECT count(*) FROM `+table).Scan(&n))
	return n
}

func entry(key string) middleware.Entry {
	return middleware.Entry{
		Consumer:        "billing",
		MessageKey:      key,
		PayloadHash:     "v1:j:sha256:scheme:digest",
		EventType:       "OrderPlaced",
		Source:          "/shop",
		ContractVersion: "2",
		TenantID:        "acme",
		ReceivedAt:      time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Retention:       24 * time.Hour,
	}
}

func TestAnEntryAndItsEffectCommitTogether(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)

		receipt, err := ledger.Process(t.Context(), entry("1"), effect)
		require.NoError(t, err)
		require.Equal(t, middleware.Accepted, receipt.Disposition)
		ledger.requireEntries(t, 1)
		ledger.requireEffects(t, 1)
	})
}

func TestAFailedEffectLeavesNoEntry(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		broken := errors.New("broken")

		_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
			return errors.Join(effect(ctx), broken)
		})
		require.ErrorIs(t, err, broken)
		ledger.requireEntries(t, 0)
		ledger.requireEffects(t, 0)
	})
}

func TestAKnownKeyDoesNotRunTheEffectAndGivesBackWhatWasStored(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
			return errors.Join(effect(ctx), sqlinbox.SetResult(ctx, "task/123"))
		})
		require.NoError(t, err)

		again := entry("1")
		again.PayloadHash = "v1:j:sha256:scheme:other"
		receipt, err := ledger.Process(t.Context(), again, effect)
		require.NoError(t, err)
		require.Equal(t, middleware.KnownByKey, receipt.Disposition)
		require.Equal(t, entry("1").PayloadHash, receipt.Stored.PayloadHash)
		require.Equal(t, "task/123", receipt.Stored.ResultReference)
		require.True(t, entry("1").ReceivedAt.Equal(receipt.Stored.ReceivedAt))
		require.WithinRange(t, receipt.Stored.ProcessedAt, entry("1").ReceivedAt, time.Now().Add(time.Hour))
		ledger.requireEffects(t, 1)
		ledger.requireEntries(t, 1)
	})
}

func TestAnotherKeyWithTheSameBusinessKeyIsRecordedAsItsDuplicate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		first, second := entry("1"), entry("2")
		first.BusinessKey, second.BusinessKey = "order/7", "order/7"

		_, err := ledger.Process(t.Context(), first, effect)
		require.NoError(t, err)
		receipt, err := ledger.Process(t.Context(), second, effect)
		require.NoError(t, err)
		require.Equal(t, middleware.KnownByBusinessKey, receipt.Disposition)
		require.Equal(t, "1", receipt.Stored.MessageKey)

		receipt, err = ledger.Process(t.Context(), second, effect)
		require.NoError(t, err)
		require.Equal(t, middleware.KnownByKey, receipt.Disposition)
		require.Equal(t, "1", receipt.Stored.DuplicateOf)
		ledger.requireEffects(t, 1)
		ledger.requireEntries(t, 2)
	})
}
