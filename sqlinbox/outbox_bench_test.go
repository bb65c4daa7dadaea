package sqlinbox_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// BenchmarkOutbox is one message in one transaction, commit included; plain writes the same row with a statement
// that was prepared ahead.
func BenchmarkOutbox(b *testing.B) {
	for _, database := range testdb.All() {
		b.Run(database.Name, func(b *testing.B) {
			db := database.Open(b)
			outbox, err := sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: db, Dialect: database.Dialect, InitializeSchema: true})
			require.NoError(b, err)
			b.Run("plain", func(b *testing.B) {
				text := `INSERT INTO inbox_outbox (uuid, payload, metadata) VALUES ($1, $2, $3)`
				if database.Name == "PostgreSQL" {
					text = `INSERT INTO inbox_outbox (uuid, payload, metadata, transaction_id) VALUES ($1, $2, $3, pg_current_xact_id())`
				}
				insert, err := db.Prepare(text)
				require.NoError(b, err)
				defer insert.Close()
				// The envelope of the message below.
				payload := []byte(`{"destination_topic":"invoices","uuid":"` + watermill.NewUUID() + `","payload":"eyJvcmRlciI6ICJvLTEiLCAiY2VudHMiOiAxMjUwfQ==","metadata":{"kind":"invoice"}}`)
				for b.Loop() {
					tx, err := db.BeginTx(b.Context(), nil)
					require.NoError(b, err)
					_, err = tx.StmtContext(b.Context(), insert).ExecContext(b.Context(), watermill.NewUUID(), payload, `{}`)
					require.NoError(b, err)
					require.NoError(b, tx.Commit())
				}
			})
			b.Run("outbox", func(b *testing.B) {
				for b.Loop() {
					tx, err := db.BeginTx(b.Context(), nil)
					require.NoError(b, err)
					msg := invoice(watermill.NewUUID(), `{"order": "o-1", "cents": 1250}`)
					msg.SetContext(sqlinbox.ContextWithTx(b.Context(), tx))
					require.NoError(b, outbox.Publish("invoices", msg))
					require.NoError(b, tx.Commit())
				}
			})
		})
	}
}
