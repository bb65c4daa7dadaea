package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"time"
)

// PostgreSQL is the dialect of PostgreSQL 13 and later, with lib/pq or with pgx's database/sql driver.
type PostgreSQL struct{}

func (PostgreSQL) name() string { return "postgresql" }

func (PostgreSQL) statements() statements {
	return statements{
		// ON CONFLICT DO NOTHING names no constraint, so that the key and the business key are both
		// arbiters. It waits for a transaction that holds either of them and never raises an error for a
		// duplicate.
		//
		// lock_timeout limits that wait. It is set by the statement itself, which saves a round trip, and
		// set back before the handler's statements run. A statement that inserts nothing leaves it set, but
		// then no handler runs and the transaction ends.
		insert: `
WITH wait AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS usual, set_config('lock_timeout', $11, true)
)
INSERT INTO inbox (consumer_name, message_id, event_type, source, business_key, payload_hash,
                   contract_version, tenant_id, received_at, processed_at, retention_until)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9::timestamptz, now(),
       now() + $10::double precision * interval '1 second'
FROM wait
ON CONFLICT DO NOTHING
RETURNING set_config('lock_timeout', (SELECT usual FROM wait), true)`,

		insertDuplicate: `
INSERT INTO inbox (consumer_name, message_id, event_type, source, duplicate_of, payload_hash,
                   contract_version, tenant_id, received_at, processed_at, retention_until, result_reference)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::timestamptz, now(),
        now() + $10::double precision * interval '1 second', $11)
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
SET result_reference = $1, processed_at = clock_timestamp()
WHERE consumer_name = $2 AND message_id = $3`,

		// The row lock that the upsert takes makes deliveries of one collision queue up, so that only one
		// of them finds itself the first. A redriven message was taken off the poison queue: its next
		// collision is a first one again, or the message would be lost.
		recordCollision: `
INSERT INTO inbox_collisions (consumer_name, message_id, payload_hash, stored_hash, accepted_at,
                              first_seen_at, last_seen_at, deliveries, redriven, deliveries_since_poisoned)
VALUES ($1, $2, $3, $4, $5::timestamptz, now(), now(), 1, $6, 1)
ON CONFLICT (consumer_name, message_id, payload_hash)
DO UPDATE SET deliveries = inbox_collisions.deliveries + 1,
    deliveries_since_poisoned = CASE WHEN inbox_collisions.redriven = excluded.redriven
                                     THEN inbox_collisions.deliveries_since_poisoned + 1 ELSE 1 END,
    redriven = excluded.redriven,
    last_seen_at = now()
RETURNING deliveries_since_poisoned`,

		// A statement outside of a transaction has no number assigned.
		isOpen: `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`,

		// CREATE TABLE IF NOT EXISTS is not safe against another one that runs at the same moment. The number
		// is arbitrary; it belongs to this library.
		lockSchema: `SELECT pg_advisory_xact_lock(4871290651930042)`,

		// to_regclass finds the table where the statements above find it: along the search path.
		columns: `
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`,
	}
}

func (PostgreSQL) wait(limit time.Duration) any {
	// lock_timeout counts milliseconds.
	return strconv.FormatInt(max(limit, shortestLockWait).Milliseconds(), 10)
}

// shortestLockWait is above what a statement waits for locks that are nobody's entry, such as that for adding
// a page to the table: a shorter limit would take a busy database for another delivery of the key.
const shortestLockWait = 20 * time.Millisecond

func (PostgreSQL) instant(t time.Time) any { return t.UTC() }

func (PostgreSQL) commit(_ context.Context, tx *sql.Tx) error { return tx.Commit() }

// sqlStater is an error that knows its SQLSTATE: those of lib/pq and of pgx do.
type sqlStater interface{ SQLState() string }

func (PostgreSQL) classify(err error) errorClass {
	var state sqlStater
	if errors.As(err, &state) {
		return classifySQLState(state.SQLState())
	}
	return permanent
}

// classifySQLState follows the table of error codes in PostgreSQL's manual, appendix A.
func classifySQLState(state string) errorClass {
	switch state {
	case "40001", // serialization_failure
		"40P01": // deadlock_detected
		return conflict
	case "55P03": // lock_not_available, which lock_timeout raises
		return lockTimeout
	case "57014": // query_canceled: statement_timeout, or the delivery's context ended
		return transient
	}
	switch {
	case strings.HasPrefix(state, "08"), // connection exception
		strings.HasPrefix(state, "53"),  // insufficient resources
		strings.HasPrefix(state, "57P"), // shutdown, crash recovery, not accepting connections
		state == "25006":                // read_only_sql_transaction: a replica, until the connection is moved
		return transient
	default:
		return permanent
	}
}
