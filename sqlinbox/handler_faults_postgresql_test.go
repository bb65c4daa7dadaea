//go:build !embedded

package sqlinbox_test

import (
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// Only PostgreSQL ends a transaction for a failed statement: SQLite takes back that statement alone.
func TestAHandlerThatSwallowsAFailedStatementIsNotAcked(t *testing.T) {
	t.Parallel()
	requireRedelivery(t, testdb.PostgreSQL(), handlerFault{
		name: "swallows a failed statement",
		do:   swallowsAFailedStatement,
		says: "return its error from the handler",
	})
}

func swallowsAFailedStatement(tx *sql.Tx, _ *message.Message) error {
	_, _ = tx.Exec(`INSERT INTO nowhere (id) VALUES (1)`)
	return nil
}
