//go:build !embedded

package sqlinbox_test

import (
	"context"
	"database/sql"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// openAs opens dsn with parameters of the session.
func openAs(t *testing.T, dsn string, parameters map[string]string) *sql.DB {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	query := u.Query()
	for name, value := range parameters {
		query.Set(name, value)
	}
	u.RawQuery = query.Encode()
	db, err := sql.Open("postgres", u.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// newSchema is a schema with the inbox in it.
func emptySchema(t *testing.T) (dsn string, owner *sql.DB, schema string) {
	t.Helper()
	dsn = testdb.PostgreSQLDSN(t)
	owner = openAs(t, dsn, nil)
	_, err := sqlinbox.NewStore(owner, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}, InitializeSchema: true})
	require.NoError(t, err)
	require.NoError(t, owner.QueryRow(`SELECT current_schema()`).Scan(&schema))
	return dsn, owner, schema
}

func TestNewStoreRefusesARoleThatLacksARight(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		grants []string // on a table
		says   []string
	}{
		{"only reads", []string{"SELECT ON inbox", "SELECT ON inbox_consumers", "SELECT ON inbox_collisions"}, []string{`cannot write to table "inbox"`}},
		{"cannot read the entries", []string{"INSERT, UPDATE, DELETE ON inbox", "ALL ON inbox_consumers", "ALL ON inbox_collisions"}, []string{`cannot read from table "inbox"`}},
		{"cannot set a result", []string{"SELECT, INSERT, DELETE ON inbox", "ALL ON inbox_consumers", "ALL ON inbox_collisions"}, []string{`cannot update table "inbox"`}},
		{"cannot write collisions", []string{"ALL ON inbox", "ALL ON inbox_consumers", "SELECT ON inbox_collisions"}, []string{`"inbox_collisions"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dsn, owner, schema := emptySchema(t)
			role := testdb.Unique("role")
			exec := func(statement string) {
				_, err := owner.Exec(statement)
				require.NoError(t, err)
			}
			exec(`CREATE ROLE ` + role)
			t.Cleanup(func() { exec(`DROP OWNED BY ` + role); exec(`DROP ROLE ` + role) })
			exec(`GRANT USAGE ON SCHEMA ` + schema + ` TO ` + role)
			for _, grant := range test.grants {
				exec(`GRANT ` + grant + ` TO ` + role)
			}

			_, err := sqlinbox.NewStore(openAs(t, dsn, map[string]string{"role": role}), sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}})
			require.ErrorContains(t, err, "give the role SELECT, INSERT, UPDATE and DELETE")
			for _, text := range test.says {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestNewStoreRefusesARoleThatMayNotCreateTheSchemaThatItShallInitialize(t *testing.T) {
	t.Parallel()
	dsn := testdb.PostgreSQLDSN(t)
	owner := openAs(t, dsn, nil)
	role := testdb.Unique("role")
	_, err := owner.Exec(`CREATE ROLE ` + role)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := owner.Exec(`DROP ROLE ` + role)
		require.NoError(t, err)
	})

	_, err = sqlinbox.NewStore(openAs(t, dsn, map[string]string{"role": role}),
		sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}, InitializeSchema: true})
	require.ErrorContains(t, err, "grant the role CREATE on the schema")
}

// lib/pq begins every transaction as READ WRITE, so that the session's default does not bind the inbox. What must
// not be is a store that starts and cannot write.
func TestASessionThatIsReadOnlyByDefaultStillKeepsEntries(t *testing.T) {
	t.Parallel()
	dsn, owner, _ := emptySchema(t)
	store, err := sqlinbox.NewStore(openAs(t, dsn, map[string]string{"default_transaction_read_only": "on"}),
		sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}})
	require.NoError(t, err)
	defer store.Close()
	receipt, err := store.Process(t.Context(), entry("1"), func(context.Context) error { return nil })
	require.NoError(t, err)
	require.Equal(t, middleware.Accepted, receipt.Disposition)
	ledger{db: owner}.requireEntries(t, 1)
}

// A collation that folds case has to be made on purpose in PostgreSQL; a copied migration may have one.
func TestNewStoreRefusesACollationThatFoldsCase(t *testing.T) {
	t.Parallel()
	_, owner, _ := emptySchema(t)
	for _, statement := range []string{
		`CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`,
		`ALTER TABLE inbox ALTER COLUMN message_id TYPE text COLLATE folding`,
	} {
		_, err := owner.Exec(statement)
		require.NoError(t, err)
	}
	_, err := sqlinbox.NewStore(owner, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}})
	require.ErrorContains(t, err, "collation that compares bytes")
}

// Replicas start together: each of them may initialize the schema.
func TestReplicasInitializeTheSchemaAtTheSameTime(t *testing.T) {
	t.Parallel()
	dsn := testdb.PostgreSQLDSN(t)
	failures := make(chan error, 8)
	for range cap(failures) {
		db := openAs(t, dsn, nil)
		go func() {
			_, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}, InitializeSchema: true})
			failures <- err
		}()
	}
	for range cap(failures) {
		require.NoError(t, <-failures)
	}
}

func TestTheErrorOfASchemaElsewhereNamesTheSearchPath(t *testing.T) {
	t.Parallel()
	dsn, _, _ := emptySchema(t)
	_, err := sqlinbox.NewStore(openAs(t, dsn, map[string]string{"search_path": "pg_catalog"}), sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}})
	require.ErrorContains(t, err, "search path")
}
