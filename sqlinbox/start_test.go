package sqlinbox_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

const schemaCure = "set Config.InitializeSchema, or apply the files of sqlinbox/schema/"

// damages are what may be wrong with a schema that somebody made on their own.
var damages = []struct {
	name string
	// do are statements that damage a schema that was right.
	do   []string
	says []string
}{
	{
		name: "no table of entries",
		do:   []string{`DROP TABLE inbox`},
		says: []string{`table "inbox" is missing`, schemaCure},
	},
	{
		name: "no table of consumers",
		do:   []string{`DROP TABLE inbox_consumers`},
		says: []string{`table "inbox_consumers" is missing`, schemaCure},
	},
	{
		name: "no table of collisions",
		do:   []string{`DROP TABLE inbox_collisions`},
		says: []string{`table "inbox_collisions" is missing`, schemaCure},
	},
	{
		name: "no tables at all",
		do:   []string{`DROP TABLE inbox_collisions`, `DROP TABLE inbox`, `DROP TABLE inbox_consumers`},
		says: []string{`table "inbox" is missing`, `table "inbox_consumers" is missing`, `table "inbox_collisions" is missing`},
	},
	{
		name: "no column of the entries",
		do:   []string{`ALTER TABLE inbox DROP COLUMN result_reference`},
		says: []string{`table "inbox" has no column result_reference`, schemaCure},
	},
	{
		name: "no columns of the consumers",
		do:   []string{`ALTER TABLE inbox_consumers DROP COLUMN horizon`, `ALTER TABLE inbox_consumers DROP COLUMN owner`},
		says: []string{`table "inbox_consumers" has no column owner, horizon`, schemaCure},
	},
	{
		name: "no unique business key",
		do:   []string{`DROP INDEX inbox_business_key`},
		says: []string{`table "inbox"`, "unique index on (consumer_name, business_key) is missing"},
	},
	{
		name: "no primary key of the entries",
		do:   []string{`CREATE TABLE copy AS SELECT * FROM inbox`, `DROP TABLE inbox`, `ALTER TABLE copy RENAME TO inbox`},
		says: []string{`table "inbox"`, "primary key on (consumer_name, message_id) is missing"},
	},
	{
		name: "no consumer in the primary key of the entries",
		do: []string{
			`CREATE TABLE copy AS SELECT * FROM inbox`, `DROP TABLE inbox`, `ALTER TABLE copy RENAME TO inbox`,
			`CREATE UNIQUE INDEX inbox_key ON inbox (message_id)`,
			`CREATE UNIQUE INDEX inbox_business_key ON inbox (consumer_name, business_key)`,
		},
		says: []string{`table "inbox"`, "primary key must begin with consumer_name"},
	},
	{
		name: "no primary key of the collisions",
		do:   []string{`CREATE TABLE copy AS SELECT * FROM inbox_collisions`, `DROP TABLE inbox_collisions`, `ALTER TABLE copy RENAME TO inbox_collisions`},
		says: []string{`table "inbox_collisions"`, "primary key on (consumer_name, message_id, payload_hash)"},
	},
}

func TestNewStoreNamesWhatIsMissingInTheSchemaAndItsCure(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		for _, damage := range damages {
			t.Run(damage.name, func(t *testing.T) {
				t.Parallel()
				db := newLedger(t, database).db
				for _, statement := range damage.do {
					_, err := db.Exec(statement)
					require.NoError(t, err)
				}

				_, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: database.Dialect})
				for _, text := range damage.says {
					require.ErrorContains(t, err, text)
				}
			})
		}
	})
}

func TestNewStoreLeavesNothingOfItsCheckBehind(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		require.NoError(t, ledger.Check(t.Context()))
		ledger.requireEntries(t, 0)
		require.Equal(t, 0, ledger.count(t, "inbox_collisions"))
	})
}

func TestTheSchemaCanBeInitializedAgainAndUnderAnotherName(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		_, err := ledger.Process(t.Context(), entry("1"), effect)
		require.NoError(t, err)

		again, err := sqlinbox.NewStore(ledger.db, sqlinbox.Config{Dialect: database.Dialect, InitializeSchema: true})
		require.NoError(t, err)
		require.NoError(t, again.Close())
		ledger.requireEntries(t, 1)

		other, err := sqlinbox.NewStore(ledger.db, sqlinbox.Config{Dialect: database.Dialect, InitializeSchema: true, Table: "shop_inbox"})
		require.NoError(t, err)
		defer other.Close()
		receipt, err := other.Process(t.Context(), entry("1"), effect)
		require.NoError(t, err)
		require.Equal(t, middleware.Accepted, receipt.Disposition)
		ledger.requireEntries(t, 1)
		require.Equal(t, 1, ledger.count(t, "shop_inbox"))
	})
}

func TestNewStoreRefusesABadConfig(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		config sqlinbox.Config
		says   string
	}{
		{"no dialect", sqlinbox.Config{}, "set Config.Dialect"},
		{"table name with a quote", sqlinbox.Config{Table: `inbox"; --`}, "table name"},
		{"table name with a dot", sqlinbox.Config{Table: "shop.inbox"}, "table name"},
		{"table name in upper case", sqlinbox.Config{Table: "Inbox"}, "table name"},
		{"negative wait", sqlinbox.Config{InFlightWait: -time.Second}, "in-flight wait -1s is negative"},
		{"read-only transactions", sqlinbox.Config{TxOptions: &sql.TxOptions{ReadOnly: true}}, "TxOptions.ReadOnly"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.config.Dialect == nil && test.name != "no dialect" {
				test.config.Dialect = sqlinbox.SQLite{}
			}
			_, err := sqlinbox.NewStore(testdb.SQLite().Open(t), test.config)
			require.ErrorContains(t, err, "invalid inbox store config")
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestNewStoreRefusesNoDatabase(t *testing.T) {
	t.Parallel()
	_, err := sqlinbox.NewStore(nil, sqlinbox.Config{Dialect: sqlinbox.SQLite{}})
	require.ErrorContains(t, err, "db is nil; open it with sql.Open")
}

func TestNewStoreRefusesAClosedDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		for _, initialize := range []bool{false, true} {
			db := database.Open(t)
			require.NoError(t, db.Close())
			_, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: database.Dialect, InitializeSchema: initialize})
			require.ErrorContains(t, err, "database is closed")
		}
	})
}

func TestNewStoreRefusesAReadOnlySQLiteFile(t *testing.T) {
	t.Parallel()
	dsn := testdb.SQLiteDSN(filepath.Join(t.TempDir(), "inbox.db"))
	writable, err := sql.Open("sqlite", dsn)
	require.NoError(t, err)
	defer writable.Close()
	_, err = sqlinbox.NewStore(writable, sqlinbox.Config{Dialect: sqlinbox.SQLite{}, InitializeSchema: true})
	require.NoError(t, err)

	readOnly, err := sql.Open("sqlite", dsn+"&mode=ro")
	require.NoError(t, err)
	defer readOnly.Close()
	_, err = sqlinbox.NewStore(readOnly, sqlinbox.Config{Dialect: sqlinbox.SQLite{}})
	require.ErrorContains(t, err, `cannot write to table "inbox"`)
	require.ErrorContains(t, err, "on a database that is not read-only")
}

// startRouter is what router.Run returns when the inbox's plugin refuses the start.
func startRouter(t *testing.T, config middleware.InboxConfig) error {
	t.Helper()
	inbox, err := middleware.NewInbox(config)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddPlugin(inbox.Plugin)
	router.AddMiddleware(inbox.Middleware)
	router.AddConsumerHandler("billing", "orders", newBroker(t), func(*message.Message) error {
		t.Error("the handler was called")
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return router.Run(ctx)
}

func TestTheRouterDoesNotStartWithAHandlerNameThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	err := startRouter(t, middleware.InboxConfig{
		Store:    newLedger(t, testdb.SQLite()).Store,
		Handlers: map[string]middleware.HandlerConfig{"biling": {}},
	})
	require.ErrorContains(t, err, `InboxConfig.Handlers names handler "biling"`)
	require.ErrorContains(t, err, `the router has only ["billing"]`)
}

func TestTheRouterDoesNotStartOnADatabaseThatLostItsTable(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		_, err := ledger.db.Exec(`DROP TABLE inbox`)
		require.NoError(t, err)
		err = startRouter(t, middleware.InboxConfig{Store: ledger.Store})
		require.ErrorContains(t, err, "inbox store is not usable")
		require.ErrorContains(t, err, `table "inbox" is missing`)
		require.ErrorContains(t, err, schemaCure)
	})
}

func TestTheRouterDoesNotStartOnAClosedDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		require.NoError(t, ledger.db.Close())
		err := startRouter(t, middleware.InboxConfig{Store: ledger.Store})
		require.ErrorContains(t, err, "inbox store is not usable")
		require.ErrorContains(t, err, "database is closed")
	})
}

// A database that is lost while the router runs is the last case: nothing is processed without the inbox.
func TestADeliveryWithoutItsTableIsNeverProcessedWithoutTheInbox(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		_, err := ledger.db.Exec(`DROP TABLE inbox`)
		require.NoError(t, err)
		_, err = ledger.Process(t.Context(), entry("1"), func(context.Context) error {
			t.Error("the effect has run")
			return nil
		})
		require.Error(t, err)
	})
}
