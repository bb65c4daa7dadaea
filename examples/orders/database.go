package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"github.com/lib/pq"
)

// tables of the service; those of the inbox are made by sqlinbox.
//
// orders and bills have no unique key on purpose: a second effect would be a second row, not an error.
const tables = `
CREATE TABLE IF NOT EXISTS orders (order_number text NOT NULL, customer text NOT NULL, cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS bills (order_number text NOT NULL, cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS producer (plan text NOT NULL, next_order bigint NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS runs (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    finished            boolean NOT NULL DEFAULT false,
    published           bigint NOT NULL DEFAULT 0,
    accepted            bigint NOT NULL DEFAULT 0,
    duplicates          bigint NOT NULL DEFAULT 0,
    semantic_duplicates bigint NOT NULL DEFAULT 0,
    collisions          bigint NOT NULL DEFAULT 0,
    failed              bigint NOT NULL DEFAULT 0
)`

// createSchema makes the schema of the run if it is new, and refuses one that was made for other orders.
func createSchema(ctx context.Context, db *sql.DB, config config) error {
	if _, err := db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS `+config.schema()); err != nil {
		return withoutURL("cannot create the schema "+config.schema(), err)
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("cannot create the tables: %w", err)
	}
	_, err := db.ExecContext(ctx, `INSERT INTO producer (plan) SELECT $1 WHERE NOT EXISTS (SELECT FROM producer)`, config.plan.description())
	if err != nil {
		return err
	}

	var known string
	if err := db.QueryRowContext(ctx, `SELECT plan FROM producer`).Scan(&known); err != nil {
		return err
	}
	if known != config.plan.description() {
		return fmt.Errorf("run %s was started with %s; use these flags, another -name, or remove it with -clean", config.name, known)
	}
	return nil
}

// openDatabase opens a pool in the schema of the run.
func openDatabase(config config) (*sql.DB, error) {
	settings, err := pq.NewConfig(config.postgresql)
	if err != nil {
		return nil, withoutURL("cannot read the PostgreSQL DSN", err)
	}
	settings = settings.Clone()
	settings.Runtime["search_path"] = config.schema()
	settings.Runtime["client_min_messages"] = "warning"
	connector, err := pq.NewConnectorConfig(settings)
	if err != nil {
		return nil, withoutURL("cannot read the PostgreSQL DSN", err)
	}
	db := sql.OpenDB(connector)
	// One connection for each delivery at either end, and some for the producer, the relay, the tally and the lock.
	db.SetMaxOpenConns(2*config.parallel + 6)
	db.SetMaxIdleConns(2*config.parallel + 6)
	return db, nil
}

func dropSchema(ctx context.Context, config config) error {
	db, err := openDatabase(config)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+config.schema()+` CASCADE`)
	return err
}

// nextOrder is the first order that is not known to be published.
func nextOrder(ctx context.Context, db *sql.DB) (next int, err error) {
	err = db.QueryRowContext(ctx, `SELECT next_order FROM producer`).Scan(&next)
	return next, err
}

func setNextOrder(ctx context.Context, db *sql.DB, next int) error {
	_, err := db.ExecContext(ctx, `UPDATE producer SET next_order = GREATEST(next_order, $1)`, next)
	return err
}

// withoutURL keeps the password out of the message: the errors of net/url quote the whole URL.
func withoutURL(what string, err error) error {
	var urlError *url.Error
	if errors.As(err, &urlError) {
		err = urlError.Err
	}
	return fmt.Errorf("%s: %w", what, err)
}
