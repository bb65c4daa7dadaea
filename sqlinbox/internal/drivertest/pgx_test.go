package drivertest

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/hookdriver"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/storetest"
)

func TestTheOutcomesAreTheSameWithPgxAndWithDriversThatWrapIt(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, dsn string, hooks hookdriver.Hooks) *sql.DB {
		config, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		return hookdriver.Open(stdlib.GetConnector(*config), hooks)
	})
}

func TestTheOutcomesAreTheSameWithPgxUnwrapped(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, dsn string, _ hookdriver.Hooks) *sql.DB {
		db, err := sql.Open("pgx", dsn)
		require.NoError(t, err)
		return db
	})
}
