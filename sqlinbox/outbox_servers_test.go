//go:build !embedded

package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

func TestTheRelayKeepsOrderAndMetadataOnTheWayToRabbitMQ(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		queue := newQueue(t)
		rig := newOutboxRig(t, database, nil)
		const messages = 200
		for i := range messages {
			_, err := rig.Process(t.Context(), entry(fmt.Sprint(i)), func(ctx context.Context) error {
				msg := invoice(fmt.Sprint("i-", i), fmt.Sprintf(`{"n":%d,"text":"ä\u0000"}`, i))
				msg.Metadata.Set("empty", "")
				wmmiddleware.SetCorrelationID("flow-7", msg)
				msg.SetContext(ctx)
				return rig.outbox.Publish(queue.name, msg)
			})
			require.NoError(t, err)
		}
		config := amqp.NewDurableQueueConfig(queue.uri)
		config.Publish.ConfirmDelivery = true
		publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
		require.NoError(t, err)
		t.Cleanup(func() { _ = publisher.Close() })
		forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{Outbox: rig.outbox, Publisher: publisher, PollInterval: 5 * time.Millisecond})
		require.NoError(t, err)
		run(t, forwarder.Run, forwarder.Running(), forwarder.Close)

		arrived, err := queue.subscriber(t).Subscribe(t.Context(), queue.name)
		require.NoError(t, err)
		for i := range messages {
			msg := await(t, arrived, "the next message")
			require.Equal(t, fmt.Sprint("i-", i), msg.UUID)
			require.Equal(t, fmt.Sprintf(`{"n":%d,"text":"ä\u0000"}`, i), string(msg.Payload))
			require.Equal(t, message.Metadata{"kind": "invoice", "empty": "", wmmiddleware.CorrelationIDMetadataKey: "flow-7"}, msg.Metadata)
			msg.Ack()
		}
	})
}

func TestTwoForwardersOfOneGroupShareTheWork(t *testing.T) {
	t.Parallel()
	rig := newOutboxRig(t, testdb.PostgreSQL(), nil)
	for range 2 {
		rig.forward(t)
	}
	const messages = 300
	for i := range messages {
		rig.publishInvoices(t, fmt.Sprint("i-", i))
	}
	for i, got := range rig.broker.requireArrived(t, messages) {
		require.Equal(t, fmt.Sprint("i-", i), got.msg.UUID)
	}
	// When the group has passed the last row, nobody can publish one again.
	require.Eventually(t, func() bool {
		_, err := rig.outbox.Clean(t.Context(), 0)
		require.NoError(t, err)
		return rig.count(t, "inbox_outbox") == 0
	}, patience, 5*time.Millisecond)
	rig.broker.requireArrived(t, messages)
}

// relayVariable holds the DSN of the outbox that this process forwards, in the test below.
const relayVariable = "INBOX_TEST_RELAY"

func init() {
	if dsn := os.Getenv(relayVariable); dsn != "" {
		if err := relayUntilKilled(dsn); err != nil {
			fmt.Println(err)
		}
		os.Exit(1)
	}
}

func relayUntilKilled(dsn string) error {
	driver, dialect := "sqlite", sqlinbox.Dialect(sqlinbox.SQLite{})
	if strings.HasPrefix(dsn, "postgres") {
		driver, dialect = "postgres", sqlinbox.PostgreSQL{}
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	outbox, err := sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: db, Dialect: dialect})
	if err != nil {
		return err
	}
	// The broker has the message, and the row is not marked: there it stays until the process is killed.
	publisher := publisherFunc(func(_ string, messages ...*message.Message) error {
		fmt.Println(messages[0].UUID)
		select {}
	})
	forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{Outbox: outbox, Publisher: publisher})
	if err != nil {
		return err
	}
	return errors.Join(forwarder.Run(context.Background()), errors.New("the forwarder ended by itself"))
}

func TestAForwarderThatIsKilledBeforeItMarksPublishesTheSameUUIDsAgain(t *testing.T) {
	t.Parallel()
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		schema := newSchema(t)
		requireSameUUIDsAfterKill(t, schema.dsn, testdb.Database{Dialect: sqlinbox.PostgreSQL{}, Open: func(t testing.TB) *sql.DB {
			db, err := sql.Open("postgres", schema.dsn)
			require.NoError(t, err)
			t.Cleanup(func() { _ = db.Close() })
			return db
		}})
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		dsn := testdb.SQLiteDSN(filepath.Join(t.TempDir(), "inbox.db"))
		requireSameUUIDsAfterKill(t, dsn, testdb.Database{Dialect: sqlinbox.SQLite{}, Open: func(t testing.TB) *sql.DB {
			db, err := sql.Open("sqlite", dsn)
			require.NoError(t, err)
			t.Cleanup(func() { _ = db.Close() })
			return db
		}})
	})
}

func requireSameUUIDsAfterKill(t *testing.T, dsn string, database testdb.Database) {
	t.Helper()
	rig := newOutboxRig(t, database, func(ctx context.Context, msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{invoice("", "a"), invoice("", "b")}, effect(ctx)
	})
	rig.deliver(t, message.NewMessage("o-1", []byte(`{}`)))
	rig.events.requireOutcomes(t, middleware.OutcomeAccepted)

	p := &process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 10), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), relayVariable+"="+dsn)
	p.start(t)
	published := await(t, p.lines, "a message that the process has published")
	require.NoError(t, p.cmd.Process.Kill())
	require.ErrorContains(t, await(t, p.ended, "the process's end"), "killed")

	rig.forward(t)
	again := rig.broker.requireArrived(t, 2)
	require.Equal(t, published, again[0].msg.UUID)
	require.NotEqual(t, published, again[1].msg.UUID)
}
