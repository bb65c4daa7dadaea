//go:build !embedded

package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/hookdriver"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// Driver opens a pool on a DSN of PostgreSQL. The errors of the pool pass through hooks.
type Driver func(t testing.TB, dsn string, hooks hookdriver.Hooks) *sql.DB

// hidings are what wrapping drivers do to the errors of the driver that they wrap.
var hidings = map[string]func(error) error{
	"as they are": nil,
	"wrapped":     func(err error) error { return fmt.Errorf("traced: %w", err) },
	"reduced to their code": func(err error) error {
		var coded interface{ SQLState() string }
		if errors.As(err, &coded) {
			return onlyCode(coded.SQLState())
		}
		return err
	},
}

// onlyCode is an error without type, text or cause of the driver's.
type onlyCode string

func (c onlyCode) Error() string    { return "database error" }
func (c onlyCode) SQLState() string { return string(c) }

// Run shows that the outcomes are the same with this driver, whatever becomes of its errors.
func Run(t *testing.T, driver Driver) {
	for name, hide := range hidings {
		t.Run("errors "+name, func(t *testing.T) {
			t.Parallel()
			for claim, show := range claims {
				t.Run(claim, func(t *testing.T) {
					t.Parallel()
					show(t, newBench(t, driver, hide))
				})
			}
		})
	}
}

var claims = map[string]func(t *testing.T, b bench){
	"an entry and its effect commit together, and are a duplicate next time": acceptedThenDuplicate,
	"a failed effect leaves nothing":                                         failedEffect,
	"a failed statement that the handler swallows is not accepted":           swallowedFailure,
	"a unique violation of the handler's is an error, not a duplicate":       uniqueViolation,
	"a conflict runs the unit again":                                         conflictRunsAgain,
	"a conflict at commit runs the unit again":                               conflictAtCommit,
	"a business key that is known is a semantic duplicate":                   semanticDuplicate,
	"a key in flight is held and leaves the connection usable":               heldInFlight,
	"a blocked delivery reads what was committed":                            blockedDelivery,
	"a cancelled delivery leaves nothing":                                    cancelledDelivery,
	"a lost connection is transient":                                         lostConnection,
	"a collision is published once":                                          collisionOnce,
	"a missing table is named with its cure":                                 missingTable,
}

// bench is a Store over the driver, with a table of effects.
type bench struct {
	*sqlinbox.Store
	db, admin *sql.DB
	open      func(t testing.TB) *sql.DB
}

func newBench(t *testing.T, driver Driver, hide func(error) error) bench {
	t.Helper()
	dsn := testdb.PostgreSQLDSN(t)
	open := func(t testing.TB) *sql.DB {
		db := driver(t, dsn, hookdriver.Hooks{Error: hide})
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	b := bench{db: open(t), admin: open(t), open: open}
	b.Store = b.newStore(t, b.db, sqlinbox.Config{InitializeSchema: true})
	_, err := b.admin.Exec(`CREATE TABLE effects (id text PRIMARY KEY)`)
	require.NoError(t, err)
	return b
}

func (b bench) newStore(t *testing.T, db *sql.DB, config sqlinbox.Config) *sqlinbox.Store {
	t.Helper()
	config.Dialect = sqlinbox.PostgreSQL{}
	store, err := sqlinbox.NewStore(db, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func entry(key string) middleware.Entry {
	return middleware.Entry{
		Consumer: "billing", MessageKey: key, PayloadHash: "v1:j:sha256:scheme:digest", EventType: "OrderPlaced",
		ReceivedAt: time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC), Retention: time.Hour,
	}
}

func effect(ctx context.Context) error {
	return exec(ctx, `INSERT INTO effects (id) VALUES ('effect')`)
}

func exec(ctx context.Context, statement string) error {
	tx, ok := sqlinbox.TxFromContext(ctx)
	if !ok {
		return sqlinbox.ErrNoTransaction
	}
	_, err := tx.ExecContext(ctx, statement)
	return err
}

func (b bench) requireRows(t *testing.T, entries, effects int) {
	t.Helper()
	var gotEntries, gotEffects int
	require.NoError(t, b.admin.QueryRow(`SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM effects)`).Scan(&gotEntries, &gotEffects))
	require.Equal(t, entries, gotEntries, "entries")
	require.Equal(t, effects, gotEffects, "effects")
}

func acceptedThenDuplicate(t *testing.T, b bench) {
	receipt, err := b.Process(t.Context(), entry("1"), func(ctx context.Context) error {
		return errors.Join(effect(ctx), sqlinbox.SetResult(ctx, "task/1"))
	})
	require.NoError(t, err)
	require.Equal(t, middleware.Accepted, receipt.Disposition)
	receipt, err = b.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.KnownByKey, receipt.Disposition)
	require.Equal(t, entry("1").PayloadHash, receipt.Stored.PayloadHash)
	require.Equal(t, "task/1", receipt.Stored.ResultReference)
	require.True(t, entry("1").ReceivedAt.Equal(receipt.Stored.ReceivedAt), receipt.Stored.ReceivedAt)
	require.False(t, receipt.Stored.ProcessedAt.IsZero())
	b.requireRows(t, 1, 1)
}

func failedEffect(t *testing.T, b bench) {
	broken := errors.New("broken")
	_, err := b.Process(t.Context(), entry("1"), func(ctx context.Context) error { return errors.Join(effect(ctx), broken) })
	require.ErrorIs(t, err, broken)
	require.False(t, middleware.IsTransient(err))
	b.requireRows(t, 0, 0)
}

func swallowedFailure(t *testing.T, b bench) {
	_, err := b.Process(t.Context(), entry("1"), func(ctx context.Context) error {
		_ = effect(ctx)
		_ = exec(ctx, `SELECT 1/0`)
		return nil
	})
	require.ErrorContains(t, err, "if a statement of the handler failed")
	b.requireRows(t, 0, 0)
}

func uniqueViolation(t *testing.T, b bench) {
	_, err := b.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	_, err = b.Process(t.Context(), entry("2"), effect)
	require.Error(t, err)
	require.False(t, middleware.IsTransient(err))
	b.requireRows(t, 1, 1)
}

func conflictRunsAgain(t *testing.T, b bench) {
	for _, code := range []string{"40001", "40P01"} {
		runs := 0
		receipt, err := b.Process(t.Context(), entry(code), func(ctx context.Context) error {
			runs++
			if runs > 1 {
				return exec(ctx, `INSERT INTO effects (id) VALUES ('`+code+`')`)
			}
			return fmt.Errorf("cannot bill: %w", exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'Konflikt' USING ERRCODE = '`+code+`'; END $$`))
		})
		require.NoError(t, err)
		require.Equal(t, middleware.Accepted, receipt.Disposition)
		require.Equal(t, 2, runs)
	}
	b.requireRows(t, 2, 2)
}

func conflictAtCommit(t *testing.T, b bench) {
	for _, statement := range []string{
		`CREATE SEQUENCE commits`,
		`CREATE FUNCTION refuse_first_commit() RETURNS trigger LANGUAGE plpgsql AS $$
		 BEGIN
			IF nextval('commits') = 1 THEN RAISE EXCEPTION 'Konflikt' USING ERRCODE = '40001'; END IF;
			RETURN NULL;
		 END $$`,
		`CREATE CONSTRAINT TRIGGER refuse_first_commit AFTER INSERT ON effects
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse_first_commit()`,
	} {
		_, err := b.admin.Exec(statement)
		require.NoError(t, err)
	}
	receipt, err := b.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.Accepted, receipt.Disposition)
	b.requireRows(t, 1, 1)
}

func semanticDuplicate(t *testing.T, b bench) {
	first, second := entry("1"), entry("2")
	first.BusinessKey, second.BusinessKey = "order/7", "order/7"
	_, err := b.Process(t.Context(), first, effect)
	require.NoError(t, err)
	receipt, err := b.Process(t.Context(), second, effect)
	require.NoError(t, err)
	require.Equal(t, middleware.KnownByBusinessKey, receipt.Disposition)
	require.Equal(t, "1", receipt.Stored.MessageKey)
	b.requireRows(t, 2, 1)
}

type answer struct {
	receipt middleware.Receipt
	err     error
}

// hold processes in the background and returns when the effect has written.
func hold(t *testing.T, store *sqlinbox.Store, entry middleware.Entry) (release func() answer) {
	t.Helper()
	started, end, ended := make(chan struct{}), make(chan struct{}), make(chan answer, 1)
	go func() {
		receipt, err := store.Process(t.Context(), entry, func(ctx context.Context) error {
			err := effect(ctx)
			close(started)
			<-end
			return err
		})
		ended <- answer{receipt, err}
	}()
	<-started
	return func() answer {
		close(end)
		return <-ended
	}
}

func heldInFlight(t *testing.T, b bench) {
	release := hold(t, b.Store, entry("1"))
	db := b.open(t)
	db.SetMaxOpenConns(1)
	other := b.newStore(t, db, sqlinbox.Config{InFlightWait: 20 * time.Millisecond})
	receipt, err := other.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.Held, receipt.Disposition)
	var lockTimeout string
	require.NoError(t, db.QueryRow(`SELECT current_setting('lock_timeout')`).Scan(&lockTimeout))
	require.Equal(t, "0", lockTimeout)

	require.Equal(t, middleware.Accepted, release().receipt.Disposition)
	receipt, err = other.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.KnownByKey, receipt.Disposition)
	b.requireRows(t, 1, 1)
}

func blockedDelivery(t *testing.T, b bench) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		_, err := b.admin.Exec(`DELETE FROM effects`)
		require.NoError(t, err)
		release := hold(t, b.Store, entry(level.String()))
		db := b.open(t)
		other := b.newStore(t, db, sqlinbox.Config{TxOptions: &sql.TxOptions{Isolation: level}, InFlightWait: time.Minute})
		rival := entry(level.String())
		rival.PayloadHash = "v1:j:sha256:scheme:other"
		blocked := make(chan answer, 1)
		go func() {
			receipt, err := other.Process(t.Context(), rival, effect)
			blocked <- answer{receipt, err}
		}()
		for waiting := 0; waiting == 0; time.Sleep(time.Millisecond) {
			require.NoError(t, b.admin.QueryRow(`SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (
				SELECT pid FROM pg_locks WHERE relation = to_regclass('inbox'))`).Scan(&waiting))
		}
		require.NoError(t, release().err)
		answer := <-blocked
		require.NoError(t, answer.err)
		require.Equal(t, middleware.KnownByKey, answer.receipt.Disposition)
		require.Equal(t, entry("").PayloadHash, answer.receipt.Stored.PayloadHash)
	}
	b.requireRows(t, 3, 1)
}

func cancelledDelivery(t *testing.T, b bench) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := b.Process(ctx, entry("1"), func(ctx context.Context) error {
		err := effect(ctx)
		cancel()
		return err
	})
	require.ErrorIs(t, err, context.Canceled)
	b.requireRows(t, 0, 0)
	receipt, err := b.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.Accepted, receipt.Disposition)
}

func lostConnection(t *testing.T, b bench) {
	for name, end := range map[string]func(err error) error{
		"the handler returns it":  func(err error) error { return err },
		"the handler wraps it":    func(err error) error { return fmt.Errorf("cannot bill: %w", err) },
		"the handler replaces it": func(error) error { return errors.New("cannot bill") },
	} {
		_, err := b.Process(t.Context(), entry(name), func(ctx context.Context) error {
			tx, _ := sqlinbox.TxFromContext(ctx)
			var backend int
			require.NoError(t, tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&backend))
			_, err := b.admin.Exec(`SELECT pg_terminate_backend($1)`, backend)
			require.NoError(t, err)
			return end(effect(ctx))
		})
		require.Error(t, err, name)
		require.True(t, middleware.IsTransient(err), "%s: %v", name, err)
	}
	_, err := b.Process(t.Context(), entry("swallowed"), func(ctx context.Context) error {
		tx, _ := sqlinbox.TxFromContext(ctx)
		_, _ = tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		_ = effect(ctx)
		return nil
	})
	require.Error(t, err, "the handler swallows it")
	b.requireRows(t, 0, 0)
}

func collisionOnce(t *testing.T, b bench) {
	collision := middleware.Collision{
		Consumer: "billing", MessageKey: "1", PayloadHash: "v1:j:sha256:scheme:other", StoredHash: "v1:j:sha256:scheme:digest", AcceptedAt: time.Now(),
	}
	published := 0
	for range 5 {
		require.NoError(t, b.RecordCollision(t.Context(), collision, func(context.Context) error { published++; return nil }))
	}
	require.Equal(t, 1, published)
	var deliveries int
	require.NoError(t, b.admin.QueryRow(`SELECT deliveries FROM inbox_collisions`).Scan(&deliveries))
	require.Equal(t, 5, deliveries)
}

func missingTable(t *testing.T, b bench) {
	_, err := sqlinbox.NewStore(b.db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}, Table: "other"})
	require.ErrorContains(t, err, `table "other`)
	require.ErrorContains(t, err, "InitializeSchema")
}
