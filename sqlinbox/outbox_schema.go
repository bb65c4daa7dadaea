package sqlinbox

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// outboxTopic is the one topic of the outbox: every row holds its destination in its envelope.
const outboxTopic = "outbox"

// outboxSchema is what an Outbox and its relay need of a database.
type outboxSchema interface {
	wmsql.SchemaAdapter
	// park keeps a row that is no message.
	//  1 offset 2 uuid 3 payload 4 metadata 5 reason
	park() string
	// clean deletes a batch of rows that were forwarded before a time.
	//  1 retention in seconds 2 rows at most
	clean() string
}

func newOutboxSchema(dialect Dialect, table string) outboxSchema {
	if _, ok := dialect.(SQLite); ok {
		return sqliteOutbox{table: table}
	}
	named := func(suffix string) func(string) string {
		return func(string) string { return `"` + table + suffix + `"` }
	}
	return postgresqlOutbox{
		DefaultPostgreSQLSchema: wmsql.DefaultPostgreSQLSchema{GenerateMessagesTableName: named("")},
		offsets:                 wmsql.DefaultPostgreSQLOffsetsAdapter{GenerateMessagesOffsetsTableName: named("_offsets")},
		table:                   table,
	}
}

// postgresqlOutbox is watermill-sql's schema over a table of the same columns.
type postgresqlOutbox struct {
	wmsql.DefaultPostgreSQLSchema
	offsets wmsql.DefaultPostgreSQLOffsetsAdapter
	table   string
}

// UnmarshalMessage also makes a message of a row whose metadata cannot be read: an error here would hold up
// every row behind it for ever. The relay parks it.
func (s postgresqlOutbox) UnmarshalMessage(row wmsql.Scanner) (wmsql.Row, error) {
	var r wmsql.Row
	var transactionID int64
	if err := row.Scan(&r.Offset, &transactionID, &r.UUID, &r.Payload, &r.Metadata); err != nil {
		return wmsql.Row{}, fmt.Errorf("cannot scan a row of the outbox: %w", err)
	}
	r.Msg = outboxMessage(r.Offset, string(r.UUID), r.Payload, r.Metadata)
	r.ExtraData = map[string]any{"transaction_id": transactionID}
	return r, nil
}

func (s postgresqlOutbox) park() string {
	return strings.ReplaceAll(`
INSERT INTO inbox_outbox_parked ("offset", uuid, payload, metadata, reason)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT ("offset") DO NOTHING`, "inbox_outbox", s.table)
}

func (s postgresqlOutbox) clean() string {
	// Only rows that every consumer group has passed. A row is found by ctid, because the primary key of
	// watermill-sql's table has no use for a bounded delete; SKIP LOCKED lets two cleaners share the work.
	return strings.ReplaceAll(`
DELETE FROM "inbox_outbox"
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM "inbox_outbox"
    WHERE (transaction_id, "offset") <= (
            SELECT last_processed_transaction_id, offset_acked FROM "inbox_outbox_offsets"
            ORDER BY last_processed_transaction_id, offset_acked
            LIMIT 1)
      AND created_at < now() - $1::double precision * interval '1 second'
    ORDER BY transaction_id, "offset"
    LIMIT $2
    FOR UPDATE SKIP LOCKED))`, "inbox_outbox", s.table)
}

// sqliteOutbox is the part of a schema that watermill-sql's publisher needs. Its subscriber is not used: it keeps its
// transaction open while a message is published, and on SQLite that is the lock, or the connection, that the handlers
// need. See outboxSubscriber.
type sqliteOutbox struct {
	wmsql.SchemaAdapter // nothing of it but what follows is called
	table               string
}

func (s sqliteOutbox) InsertQuery(_ string, messages message.Messages) (wmsql.Query, error) {
	args := make([]any, 0, 3*len(messages))
	for _, msg := range messages {
		metadata, err := json.Marshal(msg.Metadata)
		if err != nil {
			return wmsql.Query{}, fmt.Errorf("cannot encode the metadata of message %q: %w", msg.UUID, err)
		}
		args = append(args, msg.UUID, []byte(msg.Payload), string(metadata))
	}
	values := strings.TrimSuffix(strings.Repeat("(?, ?, ?), ", len(messages)), ", ")
	return wmsql.Query{Query: `INSERT INTO ` + s.table + ` (uuid, payload, metadata) VALUES ` + values, Args: args}, nil
}

func (s sqliteOutbox) park() string {
	return strings.ReplaceAll(`
INSERT INTO inbox_outbox_parked ("offset", uuid, payload, metadata, reason)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT ("offset") DO NOTHING`, "inbox_outbox", s.table)
}

func (s sqliteOutbox) clean() string {
	return strings.ReplaceAll(`
DELETE FROM inbox_outbox
WHERE "offset" IN (
    SELECT "offset" FROM inbox_outbox
    WHERE forwarded_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || $1 || ' seconds')
    ORDER BY "offset"
    LIMIT $2)`, "inbox_outbox", s.table)
}

// corruptKey marks a row of which no message can be made.
const corruptKey = "inbox_outbox_corrupt"

// offsetKey is the metadata name of the row's offset. It is metadata of the envelope, and does not leave with the
// message inside.
const offsetKey = "inbox_outbox_offset"

// outboxMessage makes the enveloped message of a row.
func outboxMessage(offset int64, uuid string, payload, metadata []byte) *message.Message {
	msg := message.NewMessage(uuid, payload)
	if len(metadata) > 0 {
		if err := json.Unmarshal(metadata, &msg.Metadata); err != nil || msg.Metadata == nil {
			msg.Metadata = message.Metadata{corruptKey: "its metadata cannot be read", "metadata": string(metadata)}
		}
	}
	msg.Metadata.Set(offsetKey, strconv.FormatInt(offset, 10))
	return msg
}
