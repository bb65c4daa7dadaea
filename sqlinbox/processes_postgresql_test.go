//go:build !embedded

package sqlinbox_test

import (
	"database/sql"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/pgproxy"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

func TestProcessesThatDeliverOneKeyAtOnceHaveOneEffectAndNoErrorInPostgreSQL(t *testing.T) {
	t.Parallel()
	dsn := testdb.PostgreSQLDSN(t)
	ledger := newLedger(t, testdb.Database{Dialect: sqlinbox.PostgreSQL{}, Open: func(t testing.TB) *sql.DB {
		db, err := sql.Open("postgres", dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}})
	proxy := pgproxy.Start(t, dsn)
	log := openServerLog(t)

	requireOneAccepted(t, "postgres", proxy.DSN())

	ledger.requireEntries(t, 1)
	ledger.requireEffects(t, 1)
	require.Empty(t, proxy.Errors())
	log.requireNoErrorOf(t, proxy.Backends())
}

// serverLog is what PostgreSQL logs from now on, if INBOX_TEST_POSTGRESQL_LOG names its file. Its log_line_prefix
// must have the process number in brackets, as the default has. Without it the proxy alone counts errors.
type serverLog struct{ *os.File }

func openServerLog(t *testing.T) serverLog {
	t.Helper()
	name := os.Getenv("INBOX_TEST_POSTGRESQL_LOG")
	if name == "" {
		return serverLog{}
	}
	file, err := os.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	_, err = file.Seek(0, io.SeekEnd)
	require.NoError(t, err)
	return serverLog{file}
}

func (l serverLog) requireNoErrorOf(t *testing.T, backends []uint32) {
	t.Helper()
	if l.File == nil {
		return
	}
	text, err := io.ReadAll(l)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		for _, backend := range backends {
			if strings.Contains(line, fmt.Sprintf("[%d]", backend)) {
				require.NotContains(t, line, "ERROR:")
			}
		}
	}
}
