package sqlinbox_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

const (
	rivalDriver = "INBOX_TEST_RIVAL_DRIVER"
	rivalDSN    = "INBOX_TEST_RIVAL_DSN"

	rivals           = 4
	goroutinesPerOne = 16
)

// processed is what Process returned.
type processed struct {
	receipt middleware.Receipt
	err     error
}

// tally is what the deliveries of one process came to.
type tally struct {
	Accepted, Known, Other int
	Errors                 []string
}

// TestMain makes the test binary one of the rival processes when the environment says so.
func TestMain(m *testing.M) {
	if dsn := os.Getenv(rivalDSN); dsn != "" {
		beRival(os.Getenv(rivalDriver), dsn)
		return
	}
	os.Exit(m.Run())
}

// beRival delivers one key from many goroutines at once, as soon as its standard input says so.
func beRival(driver, dsn string) {
	out := json.NewEncoder(os.Stdout)
	var result tally
	db, err := sql.Open(driver, dsn)
	if err == nil {
		db.SetMaxOpenConns(8)
		db.SetMaxIdleConns(8)
		var store *sqlinbox.Store
		store, err = sqlinbox.NewStore(db, sqlinbox.Config{Dialect: dialectOf(driver), InFlightWait: patience})
		if err == nil {
			_ = out.Encode(tally{}) // ready
			_, _ = bufio.NewReader(os.Stdin).ReadByte()
			result = deliverAtOnce(store)
		}
	}
	if err != nil {
		result.Errors = append(result.Errors, err.Error())
	}
	_ = out.Encode(result)
}

func dialectOf(driver string) sqlinbox.Dialect {
	if driver == "sqlite" {
		return sqlinbox.SQLite{}
	}
	return sqlinbox.PostgreSQL{}
}

func deliverAtOnce(store middleware.Store) tally {
	start := make(chan struct{})
	results := make(chan processed)
	for range goroutinesPerOne {
		go func() {
			<-start
			receipt, err := store.Process(context.Background(), entry("1"), effect)
			results <- processed{receipt, err}
		}()
	}
	close(start)
	var sum tally
	for range goroutinesPerOne {
		switch got := <-results; {
		case got.err != nil:
			sum.Errors = append(sum.Errors, got.err.Error())
		case got.receipt.Disposition == middleware.Accepted:
			sum.Accepted++
		case got.receipt.Disposition == middleware.KnownByKey:
			sum.Known++
		default:
			sum.Other++
		}
	}
	return sum
}

// requireOneAccepted starts rival processes, lets them go at once and sums up what they say.
func requireOneAccepted(t *testing.T, driver, dsn string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var starts []io.Closer
	var outputs []*json.Decoder
	for range rivals {
		rival := exec.CommandContext(ctx, os.Args[0])
		rival.Env = append(os.Environ(), rivalDriver+"="+driver, rivalDSN+"="+dsn)
		rival.Stderr = os.Stderr
		in, err := rival.StdinPipe()
		require.NoError(t, err)
		out, err := rival.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, rival.Start())
		defer func() { require.NoError(t, rival.Wait()) }()
		starts, outputs = append(starts, in), append(outputs, json.NewDecoder(out))
	}
	for _, output := range outputs {
		var ready tally
		require.NoError(t, output.Decode(&ready))
		require.Empty(t, ready.Errors)
	}
	for _, start := range starts {
		require.NoError(t, start.Close())
	}
	var sum tally
	for _, output := range outputs {
		var one tally
		require.NoError(t, output.Decode(&one))
		sum.Accepted += one.Accepted
		sum.Known += one.Known
		sum.Other += one.Other
		sum.Errors = append(sum.Errors, one.Errors...)
	}
	require.Empty(t, sum.Errors)
	require.Equal(t, tally{Accepted: 1, Known: rivals*goroutinesPerOne - 1}, sum)
}

func TestProcessesThatDeliverOneKeyAtOnceToOneSQLiteFileHaveOneEffect(t *testing.T) {
	t.Parallel()
	dsn := testdb.SQLiteDSN(filepath.Join(t.TempDir(), "inbox.db"))
	ledger := newLedger(t, testdb.Database{Dialect: sqlinbox.SQLite{}, Open: func(t testing.TB) *sql.DB {
		db, err := sql.Open("sqlite", dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}})
	requireOneAccepted(t, "sqlite", dsn)
	ledger.requireEntries(t, 1)
	ledger.requireEffects(t, 1)
}
