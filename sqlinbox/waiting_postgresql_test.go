//go:build !embedded

package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/hookdriver"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// schema is one schema of PostgreSQL that several processes use: each of its ledgers has a Store and a pool
// of its own, and shares nothing with the others but the database.
type schema struct {
	dsn         string
	application string
}

func newSchema(t *testing.T, settings ...string) schema {
	t.Helper()
	s := schema{dsn: testdb.PostgreSQLDSN(t)}.as(t, testdb.Unique("process"))
	for _, setting := range settings {
		s.dsn += "&" + setting
	}
	return s
}

func (s schema) open(t testing.TB) *sql.DB {
	db, err := sql.Open("postgres", s.dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// process is the ledger of the first process, which creates the tables.
func (s schema) process(t *testing.T, change ...func(*sqlinbox.Config)) ledger {
	t.Helper()
	return newLedger(t, testdb.Database{Name: "PostgreSQL", Dialect: sqlinbox.PostgreSQL{}, Open: s.open}, change...)
}

// otherProcess is the ledger of another process.
func (s schema) otherProcess(t *testing.T, change ...func(*sqlinbox.Config)) ledger {
	t.Helper()
	db := s.open(t)
	config := sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}}
	for _, c := range change {
		c(&config)
	}
	store, err := sqlinbox.NewStore(db, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return ledger{Store: store, db: db}
}

// as is the schema for processes of another name.
func (s schema) as(t *testing.T, application string) schema {
	t.Helper()
	dsn, err := url.Parse(s.dsn)
	require.NoError(t, err)
	query := dsn.Query()
	query.Set("application_name", application)
	dsn.RawQuery = query.Encode()
	return schema{dsn: dsn.String(), application: application}
}

// awaitBlocked waits until so many transactions of the schema's processes wait for a lock.
func (s schema) awaitBlocked(t *testing.T, want int) {
	t.Helper()
	db := s.open(t)
	eventually(t, "a transaction that waits for another one", func() bool {
		var blocked int
		require.NoError(t, db.QueryRow(
			`SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`, s.application).Scan(&blocked))
		return blocked == want
	})
}

func TestADeliveryInAnotherProcessIsHeldAndLeavesItsConnectionUsable(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(*sqlinbox.Config){
		"InFlightWait": inFlightWait(20 * time.Millisecond),
		"FailFast":     failFast,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schema := newSchema(t)
			first, second := schema.process(t), schema.otherProcess(t, wait)
			second.db.SetMaxOpenConns(1)
			slow := newSlowEffect()
			answered := first.begin(t.Context(), entry("1"), slow.run)
			await(t, slow.started, "the first delivery")

			receipt, err := second.Process(t.Context(), entry("1"), slow.run)
			require.NoError(t, err)
			require.Equal(t, middleware.Held, receipt.Disposition)
			require.Zero(t, second.db.Stats().InUse)
			require.Equal(t, "0", lockTimeout(t, second.db), "the limit of the wait must not stay in the session")
			receipt, err = second.Process(t.Context(), entry("2"), effect)
			require.NoError(t, err)
			require.Equal(t, middleware.Accepted, receipt.Disposition)

			slow.release <- nil
			require.NoError(t, await(t, answered, "the first delivery's end").err)
			receipt, err = second.Process(t.Context(), entry("1"), slow.run)
			require.NoError(t, err)
			require.Equal(t, middleware.KnownByKey, receipt.Disposition)
			require.EqualValues(t, 1, slow.runs.Load())
			require.Equal(t, "0", lockTimeout(t, second.db))
			first.requireEffects(t, 2)
		})
	}
}

func TestADeliveryOfABusinessKeyInFlightIsHeld(t *testing.T) {
	t.Parallel()
	schema := newSchema(t)
	first, second := schema.process(t, failFast), schema.otherProcess(t, failFast)
	slow := newSlowEffect()
	one, two := entry("1"), entry("2")
	one.BusinessKey, two.BusinessKey = "order/7", "order/7"
	answered := first.begin(t.Context(), one, slow.run)
	await(t, slow.started, "the first delivery")

	for _, process := range []ledger{first, second} {
		receipt, err := process.Process(t.Context(), two, slow.run)
		require.NoError(t, err)
		require.Equal(t, middleware.Held, receipt.Disposition)
	}

	slow.release <- nil
	require.NoError(t, await(t, answered, "the first delivery's end").err)
	receipt, err := second.Process(t.Context(), two, slow.run)
	require.NoError(t, err)
	require.Equal(t, middleware.KnownByBusinessKey, receipt.Disposition)
	require.EqualValues(t, 1, slow.runs.Load())
	first.requireEffects(t, 1)
}

func TestTheLimitOfTheWaitEndsBeforeTheHandlersStatements(t *testing.T) {
	t.Parallel()
	for _, usual := range []string{"0", "7s"} {
		t.Run("lock_timeout "+usual, func(t *testing.T) {
			t.Parallel()
			schema := newSchema(t, "lock_timeout="+usual)
			ledger := schema.process(t, inFlightWait(20*time.Millisecond))
			var seen string
			_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
				tx, _ := sqlinbox.TxFromContext(ctx)
				return tx.QueryRowContext(ctx, `SHOW lock_timeout`).Scan(&seen)
			})
			require.NoError(t, err)
			require.Equal(t, usual, seen)
			require.Equal(t, usual, lockTimeout(t, ledger.db))
		})
	}
}

// A handler may wait for a lock of its own for longer than InFlightWait: the limit is that of the entry.
func TestAHandlerThatWaitsForALockIsNotHeld(t *testing.T) {
	t.Parallel()
	schema := newSchema(t)
	ledger := schema.process(t, inFlightWait(100*time.Millisecond))
	_, err := ledger.db.Exec(`CREATE TABLE stock (item text PRIMARY KEY, n int); INSERT INTO stock VALUES ('book', 5)`)
	require.NoError(t, err)
	rival, err := ledger.db.Begin()
	require.NoError(t, err)
	t.Cleanup(func() { _ = rival.Rollback() })
	_, err = rival.Exec(`UPDATE stock SET n = n - 1`)
	require.NoError(t, err)

	answered := ledger.begin(t.Context(), entry("1"), func(ctx context.Context) error {
		tx, _ := sqlinbox.TxFromContext(ctx)
		_, err := tx.ExecContext(ctx, `UPDATE stock SET n = n - 1`)
		return err
	})
	eventually(t, "a handler that has waited for longer than that", func() bool {
		var waited bool
		require.NoError(t, ledger.db.QueryRow(`
SELECT count(*) = 1 FROM pg_stat_activity
WHERE application_name = $1 AND wait_event_type = 'Lock' AND now() - query_start > interval '200 ms'`, schema.application).Scan(&waited))
		return waited
	})
	require.NoError(t, rival.Commit())
	answer := await(t, answered, "the handler")
	require.NoError(t, answer.err)
	require.Equal(t, middleware.Accepted, answer.receipt.Disposition)
}

func lockTimeout(t *testing.T, db *sql.DB) string {
	t.Helper()
	var setting string
	require.NoError(t, db.QueryRow(`SHOW lock_timeout`).Scan(&setting))
	return setting
}

func TestCopiesOfASlowKeyDoNotStarveThePool(t *testing.T) {
	t.Parallel()
	ledger := newLedger(t, testdb.PostgreSQL(), inFlightWait(patience))
	ledger.db.SetMaxOpenConns(4)
	slow := newSlowEffect()
	first := ledger.begin(t.Context(), entry("slow"), slow.run)
	await(t, slow.started, "the slow delivery")

	var copies []<-chan answer
	for range 15 {
		copies = append(copies, ledger.begin(t.Context(), entry("slow"), slow.run))
	}
	for n := range 100 {
		receipt, err := ledger.Process(t.Context(), entry("other "+strconv.Itoa(n)), effect)
		require.NoError(t, err)
		require.Equal(t, middleware.Accepted, receipt.Disposition)
		require.LessOrEqual(t, ledger.db.Stats().InUse, 1, "only the slow delivery itself holds a connection")
	}
	for _, waiting := range copies {
		require.Empty(t, waiting, "a copy ended while the slow delivery was still running")
	}

	slow.release <- nil
	require.Equal(t, middleware.Accepted, await(t, first, "the slow delivery's end").receipt.Disposition)
	for _, waiting := range copies {
		require.Equal(t, middleware.KnownByKey, await(t, waiting, "a copy").receipt.Disposition)
	}
	require.EqualValues(t, 1, slow.runs.Load())
	require.Zero(t, ledger.db.Stats().InUse)
}

// Two processes: the copies in the second one wait for a transaction that is not theirs, and still only one
// of them does so with a connection.
func TestCopiesOfAKeyThatIsSlowInAnotherProcessHoldOneConnection(t *testing.T) {
	t.Parallel()
	schema := newSchema(t)
	first, second := schema.process(t), schema.otherProcess(t, inFlightWait(patience))
	second.db.SetMaxOpenConns(4)
	slow := newSlowEffect()
	answered := first.begin(t.Context(), entry("slow"), slow.run)
	await(t, slow.started, "the slow delivery")

	var copies []<-chan answer
	for range 16 {
		copies = append(copies, second.begin(t.Context(), entry("slow"), slow.run))
	}
	schema.awaitBlocked(t, 1)
	for n := range 100 {
		receipt, err := second.Process(t.Context(), entry("other "+strconv.Itoa(n)), effect)
		require.NoError(t, err)
		require.Equal(t, middleware.Accepted, receipt.Disposition)
		require.LessOrEqual(t, second.db.Stats().InUse, 1)
	}

	slow.release <- nil
	require.NoError(t, await(t, answered, "the slow delivery's end").err)
	for _, waiting := range copies {
		require.Equal(t, middleware.KnownByKey, await(t, waiting, "a copy").receipt.Disposition)
	}
	require.EqualValues(t, 1, slow.runs.Load())
	require.Zero(t, second.db.Stats().InUse)
}

func TestAnEntryWhoseTransactionRollsBackWhileARivalWaitsIsTheRivals(t *testing.T) {
	t.Parallel()
	schema := newSchema(t)
	first, second := schema.process(t), schema.otherProcess(t, inFlightWait(patience))
	slow := newSlowEffect()
	ctx, cancel := context.WithCancel(t.Context())
	lost := first.begin(ctx, entry("1"), slow.run)
	await(t, slow.started, "the first delivery")
	won := second.begin(t.Context(), entry("1"), effect)
	schema.awaitBlocked(t, 1)

	cancel()
	answer := await(t, won, "the rival")
	require.NoError(t, answer.err)
	require.Equal(t, middleware.Accepted, answer.receipt.Disposition)
	slow.release <- nil
	require.ErrorIs(t, await(t, lost, "the first delivery's end").err, context.Canceled)
	first.requireEffects(t, 1)
	first.requireEntries(t, 1)
}

// The entry was in the way of the insert, and is purged before it can be read. Whether it was a duplicate or
// a collision cannot be told any more, so the store asks again instead of guessing.
func TestAnEntryThatVanishesBeforeItIsReadIsAskedForAgain(t *testing.T) {
	t.Parallel()
	schema := newSchema(t)
	first := schema.process(t)
	_, err := first.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)

	connector, err := pq.NewConnector(schema.dsn)
	require.NoError(t, err)
	var purges atomic.Int32
	db := hookdriver.Open(connector, hookdriver.Hooks{BeforeStatement: func(text string) {
		if purges.Load() == 1 && strings.Contains(text, "AND message_id = $2") && purges.Add(1) == 2 {
			_, err := first.db.Exec(`DELETE FROM inbox WHERE message_id = '1'`)
			require.NoError(t, err)
		}
	}})
	defer db.Close()
	store, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}})
	require.NoError(t, err)
	defer store.Close()
	purges.Store(1)
	receipt, err := store.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.Accepted, receipt.Disposition)
	require.EqualValues(t, 2, purges.Load())
	first.requireEffects(t, 2) // the purged entry was the only proof of the first one
}

// When the slow delivery fails, one of its copies is next, and the others go on waiting without a connection.
func TestCopiesOfASlowKeyThatFailedDoNotStarveThePool(t *testing.T) {
	t.Parallel()
	ledger := newLedger(t, testdb.PostgreSQL(), inFlightWait(patience))
	ledger.db.SetMaxOpenConns(4)
	slow := newSlowEffect()
	first := ledger.begin(t.Context(), entry("slow"), slow.run)
	await(t, slow.started, "the slow delivery")
	var copies []<-chan answer
	for range 15 {
		copies = append(copies, ledger.begin(t.Context(), entry("slow"), slow.run))
	}

	slow.release <- errors.New("broken")
	require.Error(t, await(t, first, "the slow delivery's end").err)
	await(t, slow.started, "the next delivery")
	for n := range 50 {
		receipt, err := ledger.Process(t.Context(), entry("other "+strconv.Itoa(n)), effect)
		require.NoError(t, err)
		require.Equal(t, middleware.Accepted, receipt.Disposition)
		require.LessOrEqual(t, ledger.db.Stats().InUse, 1)
	}
	slow.release <- nil
	accepted := 0
	for _, waiting := range copies {
		if await(t, waiting, "a copy").receipt.Disposition == middleware.Accepted {
			accepted++
		}
	}
	require.Equal(t, 1, accepted)
	require.EqualValues(t, 2, slow.runs.Load())
}
