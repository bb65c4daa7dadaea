//go:build !embedded

package pgproxy_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/pgproxy"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

func start(t *testing.T) (*pgproxy.Proxy, *sql.DB) {
	t.Helper()
	proxy := pgproxy.Start(t, testdb.PostgreSQLDSN(t))
	db, err := sql.Open("postgres", proxy.DSN())
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return proxy, db
}

func TestStatementsAndErrorsAreSeenInBothProtocols(t *testing.T) {
	t.Parallel()
	proxy, db := start(t)

	var one int
	require.NoError(t, db.QueryRow(`SELECT 1`).Scan(&one))
	require.NoError(t, db.QueryRow(`SELECT $1::int`, 1).Scan(&one))
	_, err := db.Exec(`SELECT 1/0`)
	require.Error(t, err)
	_, err = db.Exec(`SELECT 1/$1::int`, 0)
	require.Error(t, err)

	require.Equal(t, []string{`SELECT 1`, `SELECT $1::int`, `SELECT 1/0`, `SELECT 1/$1::int`}, proxy.Statements())
	require.Equal(t, []pgproxy.ServerError{
		{SQLState: "22012", Message: "division by zero"},
		{SQLState: "22012", Message: "division by zero"},
	}, proxy.Errors())
}

func TestACutBeforeAStatementKeepsItFromTheServer(t *testing.T) {
	t.Parallel()
	proxy, db := start(t)
	_, err := db.Exec(`CREATE TABLE rows (id int)`)
	require.NoError(t, err)

	cut := proxy.CutBefore(`INSERT INTO rows`)
	require.Error(t, execOnce(t, db, `INSERT INTO rows VALUES (1)`))
	<-cut.Reached()
	require.Equal(t, 0, count(t, db))
}

func TestACutAfterAStatementKeepsTheAnswerFromTheClient(t *testing.T) {
	t.Parallel()
	proxy, db := start(t)
	_, err := db.Exec(`CREATE TABLE rows (id int)`)
	require.NoError(t, err)

	cut := proxy.CutAfter(`INSERT INTO rows`)
	require.Error(t, execOnce(t, db, `INSERT INTO rows VALUES ($1)`, 1))
	<-cut.Reached()
	require.Equal(t, 1, count(t, db))
}

func TestAHoldKeepsAStatementOrItsAnswerUntilItIsReleased(t *testing.T) {
	t.Parallel()
	proxy, db := start(t)
	_, err := db.Exec(`CREATE TABLE rows (id int)`)
	require.NoError(t, err)

	statement, answer := proxy.HoldBefore(`VALUES (1)`), proxy.HoldAnswer(`VALUES (2)`)
	inserted := make(chan error, 2)
	insert := func(text string) {
		_, err := db.Exec(text)
		inserted <- err
	}
	go insert(`INSERT INTO rows VALUES (1)`)
	<-statement.Reached()
	require.Equal(t, 0, count(t, db), "the server has not heard of it")
	go insert(`INSERT INTO rows VALUES (2)`)
	<-answer.Reached()
	require.Equal(t, 1, count(t, db), "the server has run it")
	require.Empty(t, inserted)

	statement.Release()
	answer.Release()
	require.NoError(t, <-inserted)
	require.NoError(t, <-inserted)
	require.Equal(t, 2, count(t, db))
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(`SELECT count(*) FROM rows`).Scan(&n))
	return n
}

// execOnce runs a statement on one connection. The pool would try another one.
func execOnce(t *testing.T, db *sql.DB, statement string, args ...any) error {
	t.Helper()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), statement, args...)
	return err
}
