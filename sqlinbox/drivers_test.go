//go:build !embedded

package sqlinbox_test

import (
	"database/sql"
	"testing"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/hookdriver"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/storetest"
)

// The same suite runs with pgx in the module sqlinbox/internal/drivertest, which keeps pgx out of this one.
func TestTheOutcomesAreTheSameWithPQAndWithDriversThatWrapIt(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, dsn string, hooks hookdriver.Hooks) *sql.DB {
		connector, err := pq.NewConnector(dsn)
		require.NoError(t, err)
		return hookdriver.Open(connector, hooks)
	})
}
