package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
)

// lockRun keeps a second process with the same name waiting until this one ends, however it ends: the lock is the
// connection's. A "go run" that is killed leaves its program running; the next start waits for that one.
func lockRun(ctx context.Context, db *sql.DB, config config) (unlock func(), err error) {
	connection, err := db.Conn(ctx)
	if err != nil {
		return nil, withoutURL("cannot connect to PostgreSQL", err)
	}
	unlock = func() {
		_, _ = connection.ExecContext(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock_all()`)
		_ = connection.Close()
	}
	const key = `hashtextextended($1, 0)`
	var free bool
	if err := connection.QueryRowContext(ctx, `SELECT pg_try_advisory_lock(`+key+`)`, config.schema()).Scan(&free); err != nil {
		unlock()
		return nil, err
	}
	if free {
		return unlock, nil
	}
	fmt.Fprintf(os.Stderr, "orders: waiting for another process with the name %s\n", config.name)
	if _, err := connection.ExecContext(ctx, `SELECT pg_advisory_lock(`+key+`)`, config.schema()); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}
