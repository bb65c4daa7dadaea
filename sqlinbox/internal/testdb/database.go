package testdb

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver of SQLite

	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

// Database is one kind of database, empty for each test that opens it.
type Database struct {
	Name    string
	Dialect sqlinbox.Dialect

	// Open returns a pool on a fresh database that is gone after the test.
	Open func(t testing.TB) *sql.DB
}

// SQLite is a file database with one connection.
func SQLite() Database {
	return Database{Name: "SQLite", Dialect: sqlinbox.SQLite{}, Open: func(t testing.TB) *sql.DB {
		db, err := sql.Open("sqlite", SQLiteDSN(filepath.Join(t.TempDir(), "inbox.db")))
		require.NoError(t, err)
		db.SetMaxOpenConns(1)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}}
}

// SQLiteDSN is the DSN of a file that several connections and processes may use. It survives a killed process,
// not a power cut.
func SQLiteDSN(file string) string {
	return fmt.Sprintf("file:%s?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)", file)
}

// Each runs claim on every kind of database, in parallel.
func Each(t *testing.T, claim func(t *testing.T, database Database)) {
	t.Helper()
	for _, database := range All() {
		t.Run(database.Name, func(t *testing.T) {
			t.Parallel()
			claim(t, database)
		})
	}
}
