package sqlinbox_test

import (
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

func TestKeysThatOnlyLookAlikeAreDifferentEntries(t *testing.T) {
	t.Parallel()
	keys := []string{
		"a",
		"A",       // case
		"a ",      // trailing space, which PAD SPACE collations ignore
		"\u00e1",  // á composed
		"a\u0301", // á decomposed
		"\U0001F980",
	}
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		for _, key := range keys {
			byKey := entry(key)
			receipt, err := ledger.Process(t.Context(), byKey, effect)
			require.NoError(t, err)
			require.Equal(t, middleware.Accepted, receipt.Disposition, "key %q", key)
		}
		for _, key := range keys {
			receipt, err := ledger.Process(t.Context(), entry(key), effect)
			require.NoError(t, err)
			require.Equal(t, middleware.KnownByKey, receipt.Disposition, "key %q", key)
			require.Equal(t, key, receipt.Stored.MessageKey)
		}
		ledger.requireEntries(t, 6)
		ledger.requireEffects(t, 6)
	})
}

func TestBusinessKeysThatOnlyLookAlikeAreDifferentActions(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		for i, businessKey := range []string{"a", "A", "a ", "\u00e1", "a\u0301", "\U0001F980"} {
			e := entry(strings.Repeat("k", i+1))
			e.BusinessKey = businessKey
			receipt, err := ledger.Process(t.Context(), e, effect)
			require.NoError(t, err)
			require.Equal(t, middleware.Accepted, receipt.Disposition, "business key %q", businessKey)
		}
	})
}

func TestConsumerAndKeyAreNeverJoinedIntoOne(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		for _, id := range []struct{ consumer, key string }{{"a|b", "c"}, {"a", "b|c"}} {
			e := entry(id.key)
			e.Consumer, e.BusinessKey = id.consumer, id.key
			receipt, err := ledger.Process(t.Context(), e, effect)
			require.NoError(t, err)
			require.Equal(t, middleware.Accepted, receipt.Disposition, "consumer %q, key %q", id.consumer, id.key)
		}
		ledger.requireEntries(t, 2)
		ledger.requireEffects(t, 2)
	})
}

func TestEachConsumerRunsAMessageOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database)
		for _, want := range []middleware.Disposition{middleware.Accepted, middleware.KnownByKey} {
			for _, consumer := range []string{"billing", "shipping"} {
				e := entry("1")
				e.Consumer = consumer
				receipt, err := ledger.Process(t.Context(), e, effect)
				require.NoError(t, err)
				require.Equal(t, want, receipt.Disposition, consumer)
			}
		}
		ledger.requireEntries(t, 2)
		ledger.requireEffects(t, 2)
	})
}

// A middleware of one handler alone is the user's choice: the other handler has no inbox, by design.
func TestAHandlerWithoutTheInboxRunsForEveryDelivery(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		var bare atomic.Int32
		s := newService(t, database, writeEffect, func(c *serviceConfig) {
			c.bare = func(*message.Message) error {
				bare.Add(1)
				return nil
			}
		})
		for range 2 {
			s.publish(t, newOrder("1", `{}`))
			s.awaitAcks(t, 2) // of both handlers
		}
		require.Equal(t, []middleware.Outcome{middleware.OutcomeAccepted, middleware.OutcomeDuplicate}, s.outcomes())
		require.EqualValues(t, 2, bare.Load())
		s.requireEntries(t, 1)
		s.requireEffects(t, 1)
	})
}

func TestAMessageThatCannotBeIdentifiedIsPoisonedAndNeverProcessed(t *testing.T) {
	t.Parallel()
	keyOf := func(key string, err error) middleware.KeyExtractor {
		return middleware.KeyFunc(func(*message.Message) (string, error) { return key, err })
	}
	for _, test := range []struct {
		name string
		uuid string
		key  middleware.KeyExtractor
	}{
		{name: "no UUID", uuid: ""},
		{name: "a UUID with NUL", uuid: "a\x00b"},
		{name: "a UUID that is not UTF-8", uuid: "a\xffb"},
		{name: "a UUID of 10 kB", uuid: strings.Repeat("a", 10_000)},
		{name: "an extractor that fails", uuid: "1", key: keyOf("", errors.New("no such field"))},
		{name: "an extractor that fails, with a key", uuid: "1", key: keyOf("2", errors.New("not sure"))},
		{name: "an empty key", uuid: "1", key: keyOf("", nil)},
		{name: "a key with NUL", uuid: "1", key: keyOf("\x00", nil)},
		{name: "a key that is half a rune", uuid: "1", key: keyOf("\xf0\x9f", nil)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				s := newService(t, database, func(*message.Message) ([]*message.Message, error) {
					t.Error("the handler was called")
					return nil, nil
				}, func(c *serviceConfig) {
					c.inbox.Handlers = map[string]middleware.HandlerConfig{"billing": {Key: test.key}}
				})

				s.deliver(t, newOrder(test.uuid, `{"id":1}`))

				require.Equal(t, []middleware.Outcome{middleware.OutcomeUnidentified}, s.outcomes(), "acked once, not delivered again")
				require.NoError(t, s.deliveries()[0].Err)
				require.True(t, s.deliveries()[0].Poisoned)
				require.Len(t, s.config.poison.messages(), 1)
				poisoned := s.config.poison.messages()[0]
				require.Equal(t, test.uuid, poisoned.UUID)
				require.JSONEq(t, `{"id":1}`, string(poisoned.Payload))
				require.Equal(t, "unidentified", poisoned.Metadata.Get(middleware.PoisonOutcomeKey))
				s.requireEntries(t, 0)
			})
		})
	}
}

func TestALongKeyIsKeptSoThatItsRedeliveryIsADuplicate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		s := newService(t, database, writeEffect)
		long := strings.Repeat("k", 300)

		s.deliver(t, newOrder(long, `{}`))
		s.deliver(t, newOrder(long, `{}`))

		require.Equal(t, []middleware.Outcome{middleware.OutcomeAccepted, middleware.OutcomeDuplicate}, s.outcomes())
		s.requireEntries(t, 1)
		s.requireEffects(t, 1)
	})
}

func TestTwoMessagesOfOneBusinessActionHaveOneEffect(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		s := newService(t, database, writeEffect, func(c *serviceConfig) {
			c.inbox.Handlers = map[string]middleware.HandlerConfig{"billing": {BusinessKey: middleware.KeyFromMetadata("opportunity")}}
		})
		for _, id := range []string{"1", "2", "2"} {
			msg := newOrder(id, `{"id":`+id+`}`)
			msg.Metadata.Set("opportunity", "7")
			s.deliver(t, msg)
		}
		require.Equal(t, []middleware.Outcome{
			middleware.OutcomeAccepted, middleware.OutcomeSemanticDuplicate, middleware.OutcomeDuplicate,
		}, s.outcomes())
		s.requireEntries(t, 2)
		s.requireEffects(t, 1)

		var first sql.NullString
		require.NoError(t, s.db.QueryRow(`SELECT duplicate_of FROM inbox WHERE message_id = '2'`).Scan(&first))
		require.Equal(t, "1", first.String)
	})
}
