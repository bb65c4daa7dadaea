//go:build soak && !embedded

package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

const (
	outage     = 30 * time.Second
	killing    = 2 * time.Minute
	allArrives = 3 * time.Minute // the end of the waits, no claim
)

func TestSoakABrokerThatIsDownDelaysMessagesAndLosesNone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		const messages = 5000
		rig := newOutboxRig(t, database, nil)
		_, err := rig.db.Exec(`CREATE TABLE billed (id text NOT NULL)`)
		require.NoError(t, err)
		var refused, arrived atomic.Int64
		var down atomic.Bool
		down.Store(true)
		downstream := publisherFunc(func(_ string, batch ...*message.Message) error {
			if down.Load() {
				refused.Add(1)
				return errors.New("the broker is down")
			}
			for _, msg := range batch {
				received := entry(msg.UUID)
				received.Consumer = "downstream" // not the one that has produced it
				_, err := rig.Process(t.Context(), received, func(ctx context.Context) error {
					tx, _ := sqlinbox.TxFromContext(ctx)
					_, err := tx.Exec(`INSERT INTO billed (id) VALUES ($1)`, msg.UUID)
					return err
				})
				if err != nil {
					return err
				}
				arrived.Add(1)
			}
			return nil
		})
		forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{Outbox: rig.outbox, Publisher: downstream, PollInterval: 5 * time.Millisecond})
		require.NoError(t, err)
		run(t, forwarder.Run, forwarder.Running(), forwarder.Close)

		ends := time.After(outage)
		for i := range messages {
			rig.publishInvoices(t, fmt.Sprint("i-", i))
		}
		<-ends
		require.Zero(t, arrived.Load())
		down.Store(false)
		require.Eventually(t, func() bool { return rig.count(t, "billed") >= messages }, allArrives, 100*time.Millisecond)
		require.Equal(t, messages, rig.count(t, "(SELECT DISTINCT id FROM billed) AS ids"))
		require.Equal(t, messages, rig.count(t, "billed"))
		t.Logf("accepted %d, publishes refused %d, arrived %d", messages, refused.Load(), arrived.Load())
	})
}

// soakVariable is the role of this process in the test below.
const soakVariable = "INBOX_TEST_SOAK"

func init() {
	if role := os.Getenv(soakVariable); role != "" {
		fmt.Println(soak(role, os.Getenv("INBOX_TEST_DSN"), os.Getenv("INBOX_TEST_URI"), os.Getenv("INBOX_TEST_QUEUE"), os.Getenv("INBOX_TEST_BILLING")))
		os.Exit(1)
	}
}

func soak(role, dsn, uri, orders, billing string) error {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return err
	}
	outbox, err := sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: db, Dialect: sqlinbox.PostgreSQL{}})
	if err != nil {
		return err
	}
	config := amqp.NewDurableQueueConfig(uri)
	config.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if role == "forwarder" {
		forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{Outbox: outbox, Publisher: publisher, PollInterval: 5 * time.Millisecond})
		if err != nil {
			return err
		}
		return forwarder.Run(context.Background())
	}
	store, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}})
	if err != nil {
		return err
	}
	inbox, err := middleware.NewInbox(middleware.InboxConfig{Store: store, Outbox: outbox})
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(inbox.Middleware)
	router.AddHandler("orders", orders, subscriber, billing, publisher, sqlinbox.Handler(func(tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		_, err := tx.Exec(`INSERT INTO ordered (id) VALUES ($1)`, msg.UUID)
		return []*message.Message{message.NewMessage("", []byte(`{}`))}, err
	}))
	return router.Run(context.Background())
}

func TestSoakKillsOfConsumerAndForwarderLoseNothingAndDoubleNothing(t *testing.T) {
	t.Parallel()
	schema, orders, billing := newSchema(t), newQueue(t), newQueue(t)
	ledger := schema.process(t)
	_, err := ledger.db.Exec(`CREATE TABLE ordered (id text NOT NULL)`)
	require.NoError(t, err)
	_, err = sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: ledger.db, Dialect: sqlinbox.PostgreSQL{}, InitializeSchema: true})
	require.NoError(t, err)
	downstream := newHeir(t, schema, billing) // writes into effects, behind an inbox

	start := func(role string) *process {
		p := &process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 100), ended: make(chan error, 1)}
		p.cmd.Env = append(os.Environ(), soakVariable+"="+role, "INBOX_TEST_DSN="+schema.dsn, "INBOX_TEST_URI="+orders.uri,
			"INBOX_TEST_QUEUE="+orders.name, "INBOX_TEST_BILLING="+billing.name)
		p.start(t)
		return p
	}
	roles := []string{"consumer", "forwarder"}
	processes := []*process{start(roles[0]), start(roles[1])}
	kills := map[string]int{}
	published := 0
	ends := time.After(killing)
	next := time.After(time.Second)
	for running := true; running; {
		select {
		case <-ends:
			running = false
		case <-next:
			i := rand.IntN(len(processes))
			require.NoError(t, processes[i].cmd.Process.Kill())
			require.ErrorContains(t, await(t, processes[i].ended, "the process's end"), "killed")
			kills[roles[i]]++
			processes[i] = start(roles[i])
			next = time.After(200*time.Millisecond + rand.N(1500*time.Millisecond))
		default:
			published++
			orders.publish(t, fmt.Sprint("o-", published))
			if published%10 == 0 {
				orders.publish(t, fmt.Sprint("o-", published)) // a duplicate
			}
			time.Sleep(5 * time.Millisecond) // the load
		}
	}
	require.Eventually(t, func() bool { return ledger.count(t, "effects") >= published }, allArrives, 100*time.Millisecond)
	for _, table := range []string{"ordered", "effects"} {
		require.Equal(t, published, ledger.count(t, table), table)
		require.Equal(t, published, ledger.count(t, "(SELECT DISTINCT id FROM "+table+") AS ids"), table)
	}
	t.Logf("published %d, kills %v, downstream deliveries %d", published, kills, len(downstream.diary.of("billing")))
}
