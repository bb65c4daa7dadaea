package sqlinbox_test

import (
	"context"
	"testing"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxtest"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

func TestTheStoreKeepsThePromisesOfAStore(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		inboxtest.TestStore(t, func(t *testing.T) inboxtest.Subject {
			ledger := newLedger(t, database)
			return inboxtest.Subject{
				Store: ledger.Store,
				Effect: func(ctx context.Context, name string) error {
					tx, ok := sqlinbox.TxFromContext(ctx)
					if !ok {
						return sqlinbox.ErrNoTransaction
					}
					_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES ($1)`, name)
					return err
				},
				CountEffects: func(ctx context.Context, name string) (count int, err error) {
					err = ledger.db.QueryRowContext(ctx, `SELECT count(*) FROM effects WHERE id = $1`, name).Scan(&count)
					return count, err
				},
				SetResult: sqlinbox.SetResult,
			}
		})
	})
}
