package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// expectedTables are the tables by the end of their names, each with its columns.
var expectedTables = []struct {
	suffix  string
	columns []string
}{
	{"", []string{
		"consumer_name", "message_id", "event_type", "source", "business_key", "payload_hash", "contract_version",
		"tenant_id", "received_at", "processed_at", "result_reference", "retention_until", "duplicate_of",
	}},
	{"_consumers", []string{"consumer_name", "owner", "retention", "horizon", "purged_entries", "purged_at"}},
	{"_collisions", []string{
		"consumer_name", "message_id", "payload_hash", "stored_hash", "accepted_at", "first_seen_at", "last_seen_at", "deliveries",
		"redriven", "deliveries_since_poisoned",
	}},
}

// Check tells whether the inbox can work on this database as it is now. It names what is missing (a table,
// a column, a right to write, a unique index, a collation that compares bytes) and its cure. It writes a few
// entries in a transaction that it rolls back.
//
// It implements middleware.Checker; NewStore and Inbox.Plugin call it.
func (s *Store) Check(ctx context.Context) error {
	var problems []error
	for _, table := range expectedTables {
		found, err := s.columns(ctx, s.config.Table+table.suffix)
		if err != nil {
			return fmt.Errorf("cannot read the schema of the inbox: %w", err)
		}
		problems = append(problems, s.missing(s.config.Table+table.suffix, table.columns, found))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return s.checkBehaviour(ctx)
}

func (s *Store) columns(ctx context.Context, table string) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, s.statements.columns, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()

	var found []string
	for rows.Next() {
		var column string
		if err := rows.Scan(&column); err != nil {
			return nil, err
		}
		found = append(found, column)
	}
	return found, rows.Err()
}

func (s *Store) missing(table string, expected, found []string) error {
	cure := fmt.Sprintf("set Config.InitializeSchema, or apply the files of sqlinbox/schema/%s", s.config.Dialect.name())
	if len(found) == 0 {
		return fmt.Errorf("table %q is missing; %s (if it is in another schema, set the connection's search path)", table, cure)
	}
	var missing []string
	for _, column := range expected {
		if !slices.Contains(found, column) {
			missing = append(missing, column)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("table %q has no column %s; %s", table, strings.Join(missing, ", "), cure)
	}
	return nil
}

// checkBehaviour does what a delivery does and looks whether the database answers as it must. It finds in
// one go what a catalogue tells only in a different way on each database: rights, read-only connections,
// a unique index that was left out of somebody's own migration, a collation that folds case.
func (s *Store) checkBehaviour(ctx context.Context) error {
	tx, err := s.db.BeginTx(ctx, s.config.TxOptions)
	if err != nil {
		return fmt.Errorf("cannot begin a transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	stmt, err := tx.PrepareContext(ctx, s.statements.insert)
	if err != nil {
		return fmt.Errorf("cannot prepare the insert of an entry: %w", err)
	}
	defer stmt.Close()

	probe := middleware.Entry{
		// No handler can have this name, so no real entry is in the way. The random part keeps replicas that
		// start together from waiting for each other.
		Consumer:    "inbox check " + watermill.NewUUID(),
		MessageKey:  "a",
		BusinessKey: "b",
		PayloadHash: "check",
		ReceivedAt:  time.Now(),
	}
	for _, step := range []struct {
		change  func(*middleware.Entry)
		isNew   bool
		problem string
	}{
		{func(*middleware.Entry) {}, true, "an entry is refused although it is new"},
		{func(*middleware.Entry) {}, false, "the same key is accepted twice: the primary key on (consumer_name, message_id) is missing"},
		{func(e *middleware.Entry) { e.MessageKey = "other" }, false, "the same business key is accepted twice: the unique index on (consumer_name, business_key) is missing"},
		{func(e *middleware.Entry) { e.MessageKey, e.BusinessKey = "A", "B" }, true, "keys that differ in case are taken for one: the identity columns need a collation that compares bytes"},
		{func(e *middleware.Entry) { e.MessageKey, e.BusinessKey = "a ", "b " }, true, "keys that differ in a trailing space are taken for one: the identity columns need a collation that compares bytes"},
		{func(e *middleware.Entry) { e.MessageKey, e.BusinessKey = "á", "é" }, true, "keys that differ in an accent are taken for one: the identity columns need a collation that compares bytes"},
		{func(e *middleware.Entry) { e.Consumer += "2" }, true, "two consumers share a key: the primary key must begin with consumer_name"},
	} {
		entry := probe
		step.change(&entry)
		isNew, err := s.insertEntry(ctx, stmt, entry, time.Second)
		if err != nil {
			return fmt.Errorf("cannot write to table %q; %s: %w", s.config.Table, rightsCure, err)
		}
		if isNew != step.isNew {
			return fmt.Errorf("table %q: %s", s.config.Table, step.problem)
		}
	}

	stored, err := scanStored(tx.QueryRowContext(ctx, s.statements.byKey, probe.Consumer, probe.MessageKey))
	if err != nil {
		return fmt.Errorf("cannot read from table %q; %s: %w", s.config.Table, rightsCure, err)
	}
	if stored.PayloadHash != probe.PayloadHash {
		return fmt.Errorf("table %q gives back payload hash %q instead of %q", s.config.Table, stored.PayloadHash, probe.PayloadHash)
	}
	if _, err := tx.ExecContext(ctx, s.statements.setResult, "check", probe.Consumer, probe.MessageKey); err != nil {
		return fmt.Errorf("cannot update table %q; %s: %w", s.config.Table, rightsCure, err)
	}
	var sincePoisoned int64
	err = tx.QueryRowContext(ctx, s.statements.recordCollision,
		probe.Consumer, probe.MessageKey, "other", probe.PayloadHash, s.config.Dialect.instant(probe.ReceivedAt), 0).Scan(&sincePoisoned)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("cannot write to table %q; it needs a primary key on (consumer_name, message_id, payload_hash), and %s: %w",
			s.config.Table+"_collisions", rightsCure, err)
	}
	return nil
}

const rightsCure = "give the role SELECT, INSERT, UPDATE and DELETE, on a database that is not read-only"
