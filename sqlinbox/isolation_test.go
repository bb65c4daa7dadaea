//go:build !embedded

package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

func isolation(level sql.IsolationLevel) func(*sqlinbox.Config) {
	return func(c *sqlinbox.Config) { c.TxOptions = &sql.TxOptions{Isolation: level} }
}

func eachIsolation(t *testing.T, claim func(t *testing.T, level sql.IsolationLevel)) {
	t.Helper()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			claim(t, level)
		})
	}
}

func TestTheTransactionHasTheIsolationOfTxOptions(t *testing.T) {
	t.Parallel()
	eachIsolation(t, func(t *testing.T, level sql.IsolationLevel) {
		ledger := newLedger(t, testdb.PostgreSQL(), isolation(level))
		var seen string
		_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
			tx, _ := sqlinbox.TxFromContext(ctx)
			return tx.QueryRowContext(ctx, `SELECT upper(current_setting('transaction_isolation'))`).Scan(&seen)
		})
		require.NoError(t, err)
		require.EqualValues(t, level.String(), map[string]string{
			"READ COMMITTED": "Read Committed", "REPEATABLE READ": "Repeatable Read", "SERIALIZABLE": "Serializable",
		}[seen])
	})
}

// The second delivery has its snapshot before the first one commits. It must come to the first one's hash, by
// its key and by its business key, and neither to "no row" nor to a loop.
func TestADeliveryThatWasBlockedByACommitReadsWhatWasCommitted(t *testing.T) {
	t.Parallel()
	eachIsolation(t, func(t *testing.T, level sql.IsolationLevel) {
		for name, rival := range map[string]struct {
			key  string
			want middleware.Disposition
		}{
			"the same key":          {"1", middleware.KnownByKey},
			"the same business key": {"2", middleware.KnownByBusinessKey},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				schema := newSchema(t)
				first := schema.process(t, isolation(level))
				second := schema.otherProcess(t, isolation(level), inFlightWait(patience))
				slow := newSlowEffect()
				one, two := entry("1"), entry(rival.key)
				one.BusinessKey, two.BusinessKey = "order/7", "order/7"
				two.PayloadHash = "v1:j:sha256:scheme:other"
				accepted := first.begin(t.Context(), one, slow.run)
				await(t, slow.started, "the first delivery")
				blocked := second.begin(t.Context(), two, slow.run)
				schema.awaitBlocked(t, 1)

				slow.release <- nil
				require.NoError(t, await(t, accepted, "the first delivery's end").err)
				answer := await(t, blocked, "the second delivery's end")
				require.NoError(t, answer.err)
				require.Equal(t, rival.want, answer.receipt.Disposition)
				require.Equal(t, one.PayloadHash, answer.receipt.Stored.PayloadHash)
				require.EqualValues(t, 1, slow.runs.Load())
				first.requireEffects(t, 1)
			})
		}
	})
}

// drain is a broker with so many workers: each message is delivered until it is acked. An error that is not
// transient fails the test.
func drain(t *testing.T, ledger ledger, workers, messages int, handler func(ctx context.Context, n int) error) {
	t.Helper()
	queue := make(chan int, messages)
	for n := range messages {
		queue <- n
	}
	close(queue)
	var group sync.WaitGroup
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := range queue {
				for t.Context().Err() == nil {
					receipt, err := ledger.Process(t.Context(), entry(strconv.Itoa(n)), func(ctx context.Context) error { return handler(ctx, n) })
					if err == nil {
						if receipt.Disposition != middleware.Accepted {
							t.Errorf("message %d is new, but the answer was %v", n, receipt.Disposition)
						}
						break
					}
					if !middleware.IsTransient(err) {
						t.Errorf("message %d: %v", n, err)
						break
					}
				}
			}
		}()
	}
	group.Wait()
}

// Every handler reads a balance and writes it back one higher: whatever overlaps and is not noticed is lost.
func TestHandlersOfOneHotRowLoseNoUpdate(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			ledger := newLedger(t, testdb.PostgreSQL(), isolation(level))
			_, err := ledger.db.Exec(`CREATE TABLE account (balance int); INSERT INTO account VALUES (0)`)
			require.NoError(t, err)
			drain(t, ledger, 4, 40, func(ctx context.Context, _ int) error {
				tx, _ := sqlinbox.TxFromContext(ctx)
				var balance int
				if err := tx.QueryRowContext(ctx, `SELECT balance FROM account`).Scan(&balance); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, `UPDATE account SET balance = $1`, balance+1)
				return err
			})
			var balance int
			require.NoError(t, ledger.db.QueryRow(`SELECT balance FROM account`).Scan(&balance))
			require.Equal(t, 40, balance)
			ledger.requireEntries(t, 40)
		})
	}
}

// Each message sends one doctor home, as long as another one is on call. They write different rows, so only
// SERIALIZABLE notices that they depend on each other.
func TestHandlersWithWriteSkewKeepTheirRuleUnderSerializable(t *testing.T) {
	t.Parallel()
	ledger := newLedger(t, testdb.PostgreSQL(), isolation(sql.LevelSerializable))
	_, err := ledger.db.Exec(`CREATE TABLE doctors (n int PRIMARY KEY, on_call boolean);
		INSERT INTO doctors SELECT n, true FROM generate_series(0, 15) n`)
	require.NoError(t, err)
	drain(t, ledger, 4, 16, func(ctx context.Context, n int) error {
		tx, _ := sqlinbox.TxFromContext(ctx)
		var onCall int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM doctors WHERE on_call`).Scan(&onCall); err != nil {
			return err
		}
		if onCall < 2 {
			return nil
		}
		_, err := tx.ExecContext(ctx, `UPDATE doctors SET on_call = false WHERE n = $1`, n)
		return err
	})
	var onCall int
	require.NoError(t, ledger.db.QueryRow(`SELECT count(*) FROM doctors WHERE on_call`).Scan(&onCall))
	require.Equal(t, 1, onCall)
	ledger.requireEntries(t, 16)
}

// Two handlers lock two rows in opposite order, so that the database must end one of them.
func TestADeadlockOfTwoHandlersEndsWithBothAccepted(t *testing.T) {
	t.Parallel()
	eachIsolation(t, func(t *testing.T, level sql.IsolationLevel) {
		ledger := newSchema(t, "deadlock_timeout=20ms").process(t, isolation(level))
		_, err := ledger.db.Exec(`CREATE TABLE stock (item text PRIMARY KEY, n int); INSERT INTO stock VALUES ('book', 0), ('pen', 0)`)
		require.NoError(t, err)
		var runs atomic.Int32
		firstRuns := make(chan struct{})
		lockBoth := func(items ...string) func(context.Context) error {
			return func(ctx context.Context) error {
				tx, _ := sqlinbox.TxFromContext(ctx)
				run := runs.Add(1)
				for i, item := range items {
					if _, err := tx.ExecContext(ctx, `UPDATE stock SET n = n + 1 WHERE item = $1`, item); err != nil {
						return fmt.Errorf("cannot take %q from the stock: %w", item, err)
					}
					switch {
					case i == 0 && run == 1:
						<-firstRuns
					case i == 0 && run == 2:
						close(firstRuns)
					}
				}
				return nil
			}
		}
		one := ledger.begin(t.Context(), entry("1"), lockBoth("book", "pen"))
		two := ledger.begin(t.Context(), entry("2"), lockBoth("pen", "book"))
		for _, end := range []<-chan answer{one, two} {
			answer := await(t, end, "a handler")
			require.NoError(t, answer.err)
			require.Equal(t, middleware.Accepted, answer.receipt.Disposition)
		}
		require.GreaterOrEqual(t, runs.Load(), int32(3), "the database ended none of them")
		var n int
		require.NoError(t, ledger.db.QueryRow(`SELECT sum(n) FROM stock`).Scan(&n))
		require.Equal(t, 4, n)
	})
}

// refuse makes the server answer with an error code and a text in another language.
func refuse(ctx context.Context, code string) error {
	tx, _ := sqlinbox.TxFromContext(ctx)
	_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE EXCEPTION 'Zugriff nicht möglich wegen gleichzeitiger Änderung' USING ERRCODE = '`+code+`'; END $$`)
	return err
}

func TestAConflictIsKnownByItsCodeInWhateverLanguageAndWrapping(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40001", "40P01"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			ledger := newLedger(t, testdb.PostgreSQL())
			runs := 0
			receipt, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
				runs++
				if err := effect(ctx); err != nil || runs > 1 {
					return err
				}
				return fmt.Errorf("cannot bill: %w", errors.Join(errors.New("first of two"), fmt.Errorf("store: %w", refuse(ctx, code))))
			})
			require.NoError(t, err)
			require.Equal(t, middleware.Accepted, receipt.Disposition)
			require.Equal(t, 2, runs)
			ledger.requireEffects(t, 1)
		})
	}
}

func TestTheClassOfAnErrorFollowsItsCode(t *testing.T) {
	t.Parallel()
	for _, example := range []struct {
		code      string
		runs      int
		transient bool
		reason    string
	}{
		{"40001", 4, true, "serialization failure: another transaction's fault, and not for ever"},
		{"40P01", 4, true, "deadlock"},
		{"55P03", 1, true, "a lock that the handler asked for with NOWAIT or lock_timeout"},
		{"57014", 1, true, "statement_timeout"},
		{"08006", 1, true, "connection failure"},
		{"53300", 1, true, "too many connections"},
		{"25006", 1, true, "read-only: a replica, until the connection is moved"},
		{"23505", 1, false, "a unique violation of the handler's own table is no duplicate of the message"},
		{"23503", 1, false, "foreign key violation"},
		{"42P01", 1, false, "undefined table"},
		{"P0001", 1, false, "an exception of the handler's own"},
	} {
		t.Run(example.code, func(t *testing.T) {
			t.Parallel()
			ledger := newLedger(t, testdb.PostgreSQL())
			runs := 0
			_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
				runs++
				return errors.Join(effect(ctx), refuse(ctx, example.code))
			})
			require.Error(t, err)
			require.Equal(t, example.runs, runs, example.reason)
			require.Equal(t, example.transient, middleware.IsTransient(err), example.reason)
			ledger.requireEffects(t, 0)
			ledger.requireEntries(t, 0)
		})
	}
}

func TestConflictRetriesIsTheBudgetOfOneDelivery(t *testing.T) {
	t.Parallel()
	for configured, wantRuns := range map[int]int{0: 4, 1: 2, 7: 8, -1: 1} {
		t.Run(strconv.Itoa(configured), func(t *testing.T) {
			t.Parallel()
			ledger := newLedger(t, testdb.PostgreSQL(), func(c *sqlinbox.Config) { c.ConflictRetries = configured })
			runs := 0
			_, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
				runs++
				return errors.Join(effect(ctx), refuse(ctx, "40001"))
			})
			require.Equal(t, wantRuns, runs)
			require.True(t, middleware.IsTransient(err), "a conflict is not the handler's fault: %v", err)
			ledger.requireEffects(t, 0)
		})
	}
}

// The conflict shows itself only at COMMIT, after the handler has returned.
func TestAConflictAtCommitRunsTheUnitAgain(t *testing.T) {
	t.Parallel()
	ledger := newLedger(t, testdb.PostgreSQL())
	_, err := ledger.db.Exec(`
		CREATE SEQUENCE commits;
		CREATE FUNCTION refuse_first_commit() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('commits') = 1 THEN RAISE EXCEPTION 'erst beim Festschreiben' USING ERRCODE = '40001'; END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER refuse_first_commit AFTER INSERT ON effects
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse_first_commit()`)
	require.NoError(t, err)
	runs := 0
	receipt, err := ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
		runs++
		return effect(ctx)
	})
	require.NoError(t, err)
	require.Equal(t, middleware.Accepted, receipt.Disposition)
	require.Equal(t, 2, runs)
	ledger.requireEffects(t, 1)
	ledger.requireEntries(t, 1)
}
