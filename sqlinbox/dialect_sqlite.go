package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// SQLite is the dialect of SQLite 3.35 and later, with modernc.org/sqlite.
//
// SQLite has one writer at a time for the whole database, so "in flight" means here that any other
// transaction writes for longer than the wait limit. Give the pool one connection
// (db.SetMaxOpenConns(1)) for a database in memory, and whenever one process alone uses the file.
type SQLite struct{}

func (SQLite) name() string { return "sqlite" }

func (SQLite) statements() statements {
	return statements{
		// The insert is the first statement of the transaction: it takes the write lock of the database
		// before anything is read, so that the transaction can never fail for having read an old state. The
		// wait limit ($11) has no place in the statement; Process waits instead.
		insert: `
INSERT INTO inbox (consumer_name, message_id, event_type, source, business_key, payload_hash,
                   contract_version, tenant_id, received_at, processed_at, retention_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
        strftime('%Y-%m-%dT%H:%M:%fZ', 'now', $10 || ' seconds'))
ON CONFLICT DO NOTHING
RETURNING $11`,

		insertDuplicate: `
INSERT INTO inbox (consumer_name, message_id, event_type, source, duplicate_of, payload_hash,
                   contract_version, tenant_id, received_at, processed_at, retention_until, result_reference)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
        strftime('%Y-%m-%dT%H:%M:%fZ', 'now', $10 || ' seconds'), $11)
ON CONFLICT DO NOTHING`,

		byKey: `
SELECT message_id, payload_hash, received_at, processed_at, result_reference, duplicate_of
FROM inbox
WHERE consumer_name = $1 AND message_id = $2`,

		byBusinessKey: `
SELECT message_id, payload_hash, received_at, processed_at, result_reference, duplicate_of
FROM inbox
WHERE consumer_name = $1 AND business_key = $2`,

		setResult: `
UPDATE inbox
SET result_reference = $1, processed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE consumer_name = $2 AND message_id = $3`,

		recordCollision: `
INSERT INTO inbox_collisions (consumer_name, message_id, payload_hash, stored_hash, accepted_at,
                              first_seen_at, last_seen_at, deliveries, redriven, deliveries_since_poisoned)
VALUES ($1, $2, $3, $4, $5, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), 1, $6, 1)
ON CONFLICT (consumer_name, message_id, payload_hash)
DO UPDATE SET deliveries = inbox_collisions.deliveries + 1,
    deliveries_since_poisoned = CASE WHEN inbox_collisions.redriven = excluded.redriven
                                     THEN inbox_collisions.deliveries_since_poisoned + 1 ELSE 1 END,
    redriven = excluded.redriven,
    last_seen_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
RETURNING deliveries_since_poisoned`,

		columns: `SELECT name FROM pragma_table_info($1)`,
	}
}

func (SQLite) wait(time.Duration) any { return 1 }

func (SQLite) instant(t time.Time) any { return t.UTC().Format(sqliteTime) }

// sqliteTime is the form that strftime('%Y-%m-%dT%H:%M:%fZ') writes.
const sqliteTime = "2006-01-02T15:04:05.000Z"

// commit runs COMMIT as a statement. When SQLite cannot commit (a deferred constraint, a reader in the way), the
// transaction stays open, and database/sql would give the connection back to the pool with it: no other
// transaction could begin there any more. After a failed statement a Rollback still works.
func (SQLite) commit(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, `COMMIT`); err != nil {
		return err
	}
	_ = tx.Rollback() // nothing is left to roll back: this gives the connection back
	return nil
}

func (SQLite) classify(err error) errorClass {
	// The low byte is the primary result code: https://www.sqlite.org/rescode.html
	var coder interface{ Code() int }
	if errors.As(err, &coder) {
		switch coder.Code() & 0xff {
		case 5, // SQLITE_BUSY
			6: // SQLITE_LOCKED, by another connection with a shared cache
			return lockTimeout
		case 8, // SQLITE_READONLY
			10, // SQLITE_IOERR
			13, // SQLITE_FULL
			14: // SQLITE_CANTOPEN
			return transient
		}
		return permanent
	}
	return permanent
}
