//go:build !embedded

package testdb

import (
	"crypto/rand"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	_ "github.com/lib/pq" // the driver of PostgreSQL
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

// All are the kinds of database that tests run on.
func All() []Database {
	return []Database{PostgreSQL(), SQLite()}
}

// PostgreSQL is a schema of its own on the server that INBOX_TEST_POSTGRESQL names, through lib/pq.
func PostgreSQL() Database {
	return Database{Name: "PostgreSQL", Dialect: sqlinbox.PostgreSQL{}, Open: func(t testing.TB) *sql.DB {
		db, err := sql.Open("postgres", PostgreSQLDSN(t))
		require.NoError(t, err)
		db.SetMaxOpenConns(8) // the server has to serve all tests
		db.SetMaxIdleConns(8)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}}
}

// PostgreSQLDSN is the DSN of a fresh schema, for processes and drivers of the test's own.
func PostgreSQLDSN(t testing.TB) string {
	server := requireServer(t, "INBOX_TEST_POSTGRESQL")
	admin, err := sql.Open("postgres", server)
	require.NoError(t, err)
	schema := Unique("inbox")
	_, err = admin.Exec(`CREATE SCHEMA ` + schema)
	require.NoError(t, err)
	t.Cleanup(func() {
		// A transaction that a failed test has left open must not make the others wait.
		_, err := admin.Exec(`SET lock_timeout = '10s'; DROP SCHEMA ` + schema + ` CASCADE`)
		require.NoError(t, err)
		_ = admin.Close()
	})

	dsn, err := url.Parse(server)
	require.NoError(t, err)
	query := dsn.Query()
	query.Set("search_path", schema)
	query.Set("application_name", schema)  // tells the test's sessions apart in pg_stat_activity
	query.Set("synchronous_commit", "off") // tests kill processes, not the server
	dsn.RawQuery = query.Encode()
	return dsn.String()
}

// AMQPURI is the URI of the RabbitMQ server that INBOX_TEST_AMQP names. Tests use names of their own on it;
// see Unique.
func AMQPURI(t testing.TB) string {
	return requireServer(t, "INBOX_TEST_AMQP")
}

// Unique is a name that no other test has.
func Unique(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text())
}

func requireServer(t testing.TB, variable string) string {
	t.Helper()
	server := os.Getenv(variable)
	if server == "" {
		t.Fatalf("%s is not set; run the tests with make test, which finds or starts the servers, or with make test-embedded, which needs none", variable)
	}
	return server
}
