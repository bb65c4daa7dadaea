//go:build !embedded

package sqlinbox_test

import (
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// sqlTopic is a topic of watermill-sql in the database of the rig.
type sqlTopic struct {
	subscriber *wsql.Subscriber
	publisher  *wsql.Publisher
}

func newSQLTopic(t *testing.T, db *sql.DB, ackDeadline time.Duration) sqlTopic {
	t.Helper()
	subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		AckDeadline:      &ackDeadline,
		PollInterval:     time.Millisecond,
		ResendInterval:   time.Millisecond,
		RetryInterval:    time.Millisecond,
		SchemaAdapter:    wsql.DefaultPostgreSQLSchema{},
		OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	require.NoError(t, subscriber.SubscribeInitialize("orders"))
	publisher, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
	require.NoError(t, err)
	return sqlTopic{subscriber: subscriber, publisher: publisher}
}

func (s sqlTopic) publish(t *testing.T, uuids ...string) {
	t.Helper()
	for _, uuid := range uuids {
		require.NoError(t, s.publisher.Publish("orders", message.NewMessage(uuid, []byte(`{"order": 7}`))))
	}
}

// awaitOffset waits until the subscriber has got past n messages.
func awaitOffset(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	eventually(t, "the subscriber's offset", func() bool {
		var offset int
		err := db.QueryRow(`SELECT offset_acked FROM watermill_offsets_orders`).Scan(&offset)
		return err == nil && offset >= n
	})
}

func TestWatermillSQLAHandlerThatFailsTwiceHasOneEffectAndOneEntry(t *testing.T) {
	t.Parallel()
	rig := newRig(t, newLedger(t, testdb.PostgreSQL()))
	topic := newSQLTopic(t, rig.db, patience)
	end := failing(errors.New("broken"), errors.New("broken again"))
	var joined atomic.Bool
	rig.router.AddConsumerHandler("billing", "orders", topic.subscriber, sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
		if theirs, ok := wsql.TxFromContext(msg.Context()); !ok || theirs == tx {
			joined.Store(true)
		}
		if _, err := tx.ExecContext(msg.Context(), `INSERT INTO effects (id) VALUES ('bill')`); err != nil {
			return err
		}
		return end()
	})).AddMiddleware(rig.inbox.Middleware)
	rig.run(t)

	topic.publish(t, "1")
	awaitOffset(t, rig.db, 1)
	require.False(t, joined.Load(), "the inbox must have a transaction of its own, next to the subscriber's")
	require.Equal(t, []middleware.Outcome{middleware.OutcomeError, middleware.OutcomeError, middleware.OutcomeAccepted}, rig.diary.outcomes("billing"))
	rig.requireEffects(t, 1)
	rig.requireEntries(t, 1)
}

func TestWatermillSQLAnAckDeadlineThatPassesInMidHandlerLeavesNothing(t *testing.T) {
	t.Parallel()
	rig := newRig(t, newLedger(t, testdb.PostgreSQL()))
	topic := newSQLTopic(t, rig.db, 500*time.Millisecond)
	var calls, seen atomic.Int32
	rig.router.AddConsumerHandler("billing", "orders", topic.subscriber, sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
		if calls.Add(1) == 2 {
			var n int32
			if err := tx.QueryRow(`SELECT count(*) FROM effects`).Scan(&n); err != nil {
				return err
			}
			seen.Store(n)
		}
		if _, err := tx.Exec(`INSERT INTO effects (id) VALUES ('bill')`); err != nil {
			return err
		}
		if calls.Load() == 1 {
			<-msg.Context().Done() // the subscriber gives the message up, and the handler does not care
			for err := error(nil); err == nil; {
				_, err = tx.Exec(`SELECT 1`)
			}
		}
		return nil
	})).AddMiddleware(rig.inbox.Middleware)
	rig.run(t)

	topic.publish(t, "1")
	awaitOffset(t, rig.db, 1)
	require.GreaterOrEqual(t, calls.Load(), int32(2))
	require.Zero(t, seen.Load(), "the cut delivery has left something")
	require.Equal(t, middleware.OutcomeError, rig.diary.outcomes("billing")[0])
	rig.requireEffects(t, 1)
	rig.requireEntries(t, 1)
}

// One message that can never succeed does not stop the ones behind it.
func TestWatermillSQLAPoisonedMessageLetsTheNextOnesPass(t *testing.T) {
	t.Parallel()
	rig := newStack(t, newLedger(t, testdb.PostgreSQL()), nil)
	topic := newSQLTopic(t, rig.db, patience)
	rig.router.AddConsumerHandler("billing", "orders", topic.subscriber, sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
		if msg.UUID == "bad" {
			return errors.New("broken")
		}
		_, err := tx.Exec(`INSERT INTO effects (id) VALUES ($1)`, msg.UUID)
		return err
	}))
	rig.run(t)

	topic.publish(t, "bad", "1", "2", "3", "3", "2")
	awaitOffset(t, rig.db, 6)
	rig.requireRows(t, "effects", "id", map[string]int{"1": 1, "2": 1, "3": 1})
	rig.requireEntries(t, 3)
	require.Len(t, rig.poison.of("billing"), 1)
	require.Equal(t, "bad", rig.poison.of("billing")[0].UUID)
}

// This is why the inbox does not join the subscriber's transaction: that one goes on after a nack, so what a
// failed attempt has written stays in it and is committed with the attempt that works.
func TestWatermillSQLTheSubscribersTransactionKeepsTheWritesOfAFailedAttempt(t *testing.T) {
	t.Parallel()
	rig := newRig(t, newLedger(t, testdb.PostgreSQL()))
	topic := newSQLTopic(t, rig.db, patience)
	end := failing(errors.New("broken"))
	rig.router.AddConsumerHandler("billing", "orders", topic.subscriber, func(msg *message.Message) error {
		tx, _ := wsql.TxFromContext(msg.Context())
		if _, err := tx.Exec(`INSERT INTO effects (id) VALUES ('bill')`); err != nil {
			return err
		}
		return end()
	})
	rig.run(t)

	topic.publish(t, "1")
	awaitOffset(t, rig.db, 1)
	rig.requireEffects(t, 2)
}

// The second half of why: when the deadline passes, the subscriber commits.
func TestWatermillSQLTheSubscribersTransactionCommitsHalfDoneWorkWhenItsDeadlinePasses(t *testing.T) {
	t.Parallel()
	rig := newRig(t, newLedger(t, testdb.PostgreSQL()))
	topic := newSQLTopic(t, rig.db, 300*time.Millisecond)
	var calls atomic.Int32
	rig.router.AddConsumerHandler("billing", "orders", topic.subscriber, func(msg *message.Message) error {
		tx, _ := wsql.TxFromContext(msg.Context())
		if _, err := tx.Exec(`INSERT INTO effects (id) VALUES ('first half')`); err != nil {
			return err
		}
		if calls.Add(1) == 1 {
			<-msg.Context().Done()
			return errors.New("no second half")
		}
		return nil
	})
	rig.run(t)

	topic.publish(t, "1")
	awaitOffset(t, rig.db, 1)
	rig.requireEffects(t, 2)
}
