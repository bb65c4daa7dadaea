//go:build !embedded

package sqlinbox_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/pgproxy"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// proxied is PostgreSQL by way of a proxy.
func proxied(t *testing.T) (*pgproxy.Proxy, testdb.Database) {
	t.Helper()
	proxy := pgproxy.Start(t, testdb.PostgreSQLDSN(t))
	return proxy, testdb.Database{Name: "PostgreSQL", Dialect: sqlinbox.PostgreSQL{}, Open: func(t testing.TB) *sql.DB {
		db, err := sql.Open("postgres", proxy.DSN())
		require.NoError(t, err)
		db.SetMaxOpenConns(4)
		db.SetMaxIdleConns(4)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}}
}

// statementsSince are the first two words of each statement after the first n.
func statementsSince(proxy *pgproxy.Proxy, n int) []string {
	var statements []string
	for _, text := range proxy.Statements()[n:] {
		text = strings.TrimSpace(text)
		if strings.HasPrefix(text, "WITH wait") {
			text = "INSERT entry"
		}
		words := strings.Fields(text)
		statements = append(statements, strings.Join(words[:min(2, len(words))], " "))
	}
	return statements
}
