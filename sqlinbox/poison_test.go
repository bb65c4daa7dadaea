package sqlinbox_test

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// stored is what the database holds of an entry.
type stored struct{ hash, receivedAt, processedAt, result string }

func (l ledger) entryOf(t *testing.T, key string) (row stored) {
	t.Helper()
	err := l.db.QueryRow(`SELECT payload_hash, received_at, processed_at, coalesce(result_reference, '') FROM inbox WHERE message_id = $1`, key).
		Scan(&row.hash, &row.receivedAt, &row.processedAt, &row.result)
	require.NoError(t, err)
	return row
}

func (l ledger) requireCollisions(t *testing.T, rows int, deliveries int64) {
	t.Helper()
	var gotRows int
	var gotDeliveries int64
	require.NoError(t, l.db.QueryRow(`SELECT count(*), coalesce(sum(deliveries), 0) FROM inbox_collisions`).Scan(&gotRows, &gotDeliveries))
	require.Equal(t, rows, gotRows, "rows of evidence")
	require.Equal(t, deliveries, gotDeliveries, "deliveries of collisions")
}

func TestACollisionIsPoisonedOnceWithAllItsEvidence(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		s := newService(t, database, func(msg *message.Message) ([]*message.Message, error) {
			return nil, errors.Join(effect(msg.Context()), sqlinbox.SetResult(msg.Context(), "task/123"))
		})
		s.deliver(t, newOrder("1", `{"amount":1}`))
		before := s.entryOf(t, "1")

		colliding := newOrder("1", `{"amount":2}`)
		metadata := maps.Clone(colliding.Metadata)
		s.deliver(t, colliding)
		s.deliver(t, newOrder("1", `{"amount":2}`))
		s.deliver(t, newOrder("1", `{"amount":3}`))

		require.Equal(t, []middleware.Outcome{
			middleware.OutcomeAccepted, middleware.OutcomeCollision, middleware.OutcomeCollision, middleware.OutcomeCollision,
		}, s.outcomes())
		require.Equal(t, before, s.entryOf(t, "1"), "the first entry is unchanged")
		s.requireEntries(t, 1)
		s.requireEffects(t, 1)
		s.requireCollisions(t, 2, 3)

		require.Len(t, s.config.poison.messages(), 2, "one for each foreign payload")
		require.Equal(t, "orders.poison", s.config.poison.topics[0])
		poisoned := s.config.poison.messages()[0]
		require.Equal(t, "1", poisoned.UUID)
		require.JSONEq(t, `{"amount":2}`, string(poisoned.Payload))
		for name, value := range metadata {
			require.Equal(t, value, poisoned.Metadata.Get(name), name)
		}
		require.Equal(t, "collision", poisoned.Metadata.Get(middleware.PoisonOutcomeKey))
		require.Equal(t, "billing", poisoned.Metadata.Get(middleware.PoisonConsumerKey))
		require.Equal(t, "1", poisoned.Metadata.Get(middleware.PoisonMessageKeyKey))
		require.Equal(t, before.hash, poisoned.Metadata.Get(middleware.PoisonStoredHashKey))
		require.Equal(t, s.deliveries()[1].PayloadHash, poisoned.Metadata.Get(middleware.PoisonPayloadHashKey))
		require.NotEqual(t, before.hash, s.deliveries()[1].PayloadHash)
		require.Equal(t, "task/123", poisoned.Metadata.Get(middleware.PoisonResultReferenceKey))
		require.Equal(t, "billing", poisoned.Metadata.Get(wmmiddleware.PoisonedHandlerKey))
		require.Equal(t, "orders", poisoned.Metadata.Get(wmmiddleware.PoisonedTopicKey))
		require.NotEmpty(t, poisoned.Metadata.Get(wmmiddleware.PoisonedSubscriberKey))
		require.Contains(t, poisoned.Metadata.Get(wmmiddleware.ReasonForPoisonedKey), middleware.ErrCollision.Error())
		for _, name := range []string{middleware.PoisonAcceptedAtKey, middleware.PoisonedAtKey} {
			at, err := time.Parse(time.RFC3339Nano, poisoned.Metadata.Get(name))
			require.NoError(t, err, name)
			require.False(t, at.IsZero(), name)
		}
	})
}

func TestEvidenceThatAMessageBringsAlongDoesNotReachThePoisonQueue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		s := newService(t, database, writeEffect)
		forged := newOrder("", `{}`)
		names := []string{
			middleware.PoisonOutcomeKey, middleware.PoisonConsumerKey, middleware.PoisonMessageKeyKey,
			middleware.PoisonPayloadHashKey, middleware.PoisonStoredHashKey, middleware.PoisonAcceptedAtKey,
			middleware.PoisonResultReferenceKey, middleware.PoisonedAtKey,
			wmmiddleware.ReasonForPoisonedKey, wmmiddleware.PoisonedTopicKey,
			wmmiddleware.PoisonedHandlerKey, wmmiddleware.PoisonedSubscriberKey,
		}
		for _, name := range names {
			forged.Metadata.Set(name, "forged")
		}

		s.deliver(t, forged)

		poisoned := s.config.poison.messages()[0]
		for _, name := range names {
			require.NotEqual(t, "forged", poisoned.Metadata.Get(name), name)
		}
		require.NotContains(t, poisoned.Metadata, middleware.PoisonStoredHashKey)
		require.Equal(t, "acme", poisoned.Metadata.Get("tenant"))
	})
}

func TestAMessageIsNotAckedWhileThePoisonQueueIsDown(t *testing.T) {
	t.Parallel()
	const outages = 3
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		for _, test := range []struct {
			name    string
			msg     func() *message.Message
			outcome middleware.Outcome
			rows    int
		}{
			{"collision", func() *message.Message { return newOrder("1", `{"amount":2}`) }, middleware.OutcomeCollision, 1},
			{"unidentified", func() *message.Message { return newOrder("", `{}`) }, middleware.OutcomeUnidentified, 0},
		} {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				down := errors.New("poison queue is down")
				var tries atomic.Int32
				s := newService(t, database, writeEffect, func(c *serviceConfig) {
					c.poison.refuse = func() error {
						if tries.Add(1) <= outages {
							return down
						}
						return nil
					}
				})
				s.deliver(t, newOrder("1", `{"amount":1}`))

				s.deliver(t, test.msg())

				require.Len(t, s.deliveries(), 1+outages+1)
				for _, delivery := range s.deliveries()[1 : 1+outages] {
					require.Equal(t, test.outcome, delivery.Outcome)
					require.ErrorIs(t, delivery.Err, down)
					require.ErrorContains(t, delivery.Err, `cannot publish to the poison queue "orders.poison"`)
					require.False(t, delivery.Poisoned)
				}
				last := s.deliveries()[1+outages]
				require.NoError(t, last.Err)
				require.True(t, last.Poisoned)
				require.Len(t, s.config.poison.messages(), 1)
				s.requireCollisions(t, test.rows, int64(test.rows))
				s.requireEntries(t, 1)
			})
		}
	})
}

func TestWithoutAPoisonQueueTheTypedErrorReachesTheOuterMiddleware(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		outer := &publisher{}
		poisonQueue, err := wmmiddleware.PoisonQueueWithFilter(outer, "orders.poison", middleware.IsPoison)
		require.NoError(t, err)
		s := newService(t, database, writeEffect, func(c *serviceConfig) {
			c.inbox.PoisonQueue = middleware.PoisonQueue{}
			c.outside = []message.HandlerMiddleware{poisonQueue}
		})
		s.deliver(t, newOrder("1", `{"amount":1}`))
		s.deliver(t, newOrder("1", `{"amount":2}`))

		require.Len(t, outer.messages(), 1)
		err = s.deliveries()[1].Err
		require.ErrorIs(t, err, middleware.ErrCollision)
		var delivery *middleware.DeliveryError
		require.ErrorAs(t, err, &delivery)
		require.Equal(t, s.entryOf(t, "1").hash, delivery.StoredHash)
		require.False(t, middleware.IsTransient(err))
		s.requireCollisions(t, 1, 1)
	})
}

// A poison message that the broker delivers over and over must not fill the table or the poison queue.
func TestThousandsOfDeliveriesOfOneCollidingMessageAreOneRowAndOnePoisonedCopy(t *testing.T) {
	t.Parallel()
	const atOnce = 16
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		deliveries := 10_000
		if _, ok := database.Dialect.(sqlinbox.SQLite); ok {
			deliveries = 1_008 // several times as slow, and no other claim
		}
		s := newService(t, database, writeEffect)
		s.deliver(t, newOrder("1", `{"amount":1}`))
		before := s.entryOf(t, "1")

		for range deliveries / atOnce {
			for range atOnce {
				s.publish(t, newOrder("1", `{"amount":2}`))
			}
			s.awaitAcks(t, atOnce)
		}

		for _, delivery := range s.deliveries()[1:] {
			require.Equal(t, middleware.OutcomeCollision, delivery.Outcome, fmt.Sprint(delivery.Err))
		}
		require.Len(t, s.config.poison.messages(), 1)
		require.Equal(t, before, s.entryOf(t, "1"))
		s.requireEntries(t, 1)
		s.requireEffects(t, 1)
		s.requireCollisions(t, 1, int64(deliveries))
	})
}

func TestACollisionThatArrivesWhileTheFirstDeliveryRunsIsPoisonedAfterItsCommit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		running, finish := make(chan struct{}), make(chan struct{})
		var calls atomic.Int32
		s := newService(t, database, func(msg *message.Message) ([]*message.Message, error) {
			if calls.Add(1) == 1 {
				close(running)
				<-finish
			}
			return nil, effect(msg.Context())
		})

		s.publish(t, newOrder("1", `{"amount":1}`))
		<-running
		s.publish(t, newOrder("1", `{"amount":2}`))
		require.Empty(t, s.deliveries(), "nothing is decided while the first delivery runs")
		close(finish)
		s.awaitAcks(t, 2)

		require.Equal(t, []middleware.Outcome{middleware.OutcomeAccepted, middleware.OutcomeCollision}, s.outcomes())
		require.EqualValues(t, 1, calls.Load())
		require.Len(t, s.config.poison.messages(), 1)
		require.JSONEq(t, `{"amount":2}`, string(s.config.poison.messages()[0].Payload))
		require.Equal(t, s.deliveries()[0].PayloadHash, s.entryOf(t, "1").hash)
		s.requireEntries(t, 1)
		s.requireEffects(t, 1)
	})
}
