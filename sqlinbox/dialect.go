package sqlinbox

import (
	"context"
	"database/sql"
	"time"
)

// Dialect is the part of a Store that differs from database to database. It is sealed: use PostgreSQL{} or
// SQLite{}.
type Dialect interface {
	// name is also the folder of the schema.
	name() string

	// statements returns the texts for a table of entries with this name.
	statements() statements

	// wait is the argument of the insert statement that limits how long it waits for another transaction.
	wait(limit time.Duration) any

	// instant is the argument for a time column.
	instant(t time.Time) any

	// commit ends the transaction. After an error a Rollback leaves the connection without one.
	commit(ctx context.Context, tx *sql.Tx) error

	// classify reads the driver's error code, and knows nothing of errors without one. It never reads the
	// text of an error.
	classify(err error) errorClass
}

// statements are whole SQL statements. Their placeholders are the same on every database and in this order.
type statements struct {
	// insert writes a new entry and returns one row, or none if its key or business key is taken.
	//  1 consumer_name 2 message_id 3 event_type 4 source 5 business_key 6 payload_hash 7 contract_version
	//  8 tenant_id 9 received_at 10 retention in seconds or NULL 11 wait limit
	insert string

	// insertDuplicate writes the entry of a semantic duplicate: no business key, but the link to the first.
	//  1 to 4 and 6 to 10 as in insert, 5 duplicate_of, 11 result_reference
	insertDuplicate string

	// byKey and byBusinessKey find the entry that was in the way of insert.
	//  1 consumer_name 2 message_id or business_key
	// -> message_id, payload_hash, received_at, processed_at, result_reference, duplicate_of
	byKey         string
	byBusinessKey string

	// setResult writes the result reference.
	//  1 result_reference 2 consumer_name 3 message_id
	setResult string

	// recordCollision counts one delivery of a collision and returns how many there were since the last copy
	// went to the poison queue, this one included.
	//  1 consumer_name 2 message_id 3 payload_hash 4 stored_hash 5 accepted_at 6 redriven
	recordCollision string

	// isOpen tells, in one row, whether the transaction that has written the entry is still open. It is used
	// with drivers whose Commit does not tell; empty: every driver's does.
	isOpen string

	// lockSchema makes sure that one process at a time changes the schema. Empty: the transaction does.
	lockSchema string

	// columns lists the columns of a table, in no order; none if there is no such table.
	//  1 table name
	columns string
}

// errorClass is what a failed transaction means for the delivery.
type errorClass int

const (
	// permanent: the same transaction would fail again.
	permanent errorClass = iota
	// conflict: the database ended the transaction for another one's sake; a fresh one can succeed at once.
	conflict
	// lockTimeout: another transaction holds a lock for longer than the wait limit.
	lockTimeout
	// transient: the database or the way to it is disturbed; a later delivery can succeed.
	transient
)
