package sqlinbox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// hostileMessages have odd texts in everything that the inbox reads of a message.
func hostileMessages() []*message.Message {
	var messages []*message.Message
	add := func(payload string) *message.Message {
		msg := message.NewMessage(fmt.Sprint("message ", len(messages)), []byte(payload))
		messages = append(messages, msg)
		return msg
	}
	for _, name := range []string{
		"ce_type", "ce_source", "ce_id", "ce_time", "ce_dataschema", "name", "contract_version", "tenant", "action",
		"inbox_redriven", "inbox_outcome", "correlation_id", "content-type",
	} {
		for _, text := range []string{
			"\xff\xfe", "a\x00b", strings.Repeat("x", 100_000), "'; DROP TABLE inbox; --", "%00", "%ff", " ",
			"9999999999-01-01T00:00:00Z", "0000-00-00T00:00:00Z", "9999-12-31T23:59:59+23:59", "0001-01-01T00:00:00Z",
		} {
			add(`{"a":1}`).Metadata.Set(name, text)
		}
	}
	for _, payload := range []string{
		"", "\x00", "\xff", strings.Repeat("[", 1<<18), strings.Repeat("x", 1<<20), `{"a":1,"a":2}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","time":"nope"}`, `{"specversion":"1.0","id":1,"source":{},"type":[]}`,
	} {
		add(payload)
	}
	return messages
}

func TestAHostileMessageIsAcceptedWithItsEntryOrPoisonedAndNeverDeliveredForEver(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger, events, poison := newLedger(t, database), &eventLog{}, &recorder{}
		inbox, err := middleware.NewInbox(middleware.InboxConfig{
			Store:       ledger.Store,
			Observer:    events,
			PoisonQueue: middleware.PoisonQueue{Publisher: poison, Topic: "poison"},
			Handlers: map[string]middleware.HandlerConfig{"orders": {
				TenantID:    middleware.KeyFromMetadata("tenant"),
				BusinessKey: middleware.FirstKey(middleware.KeyFromMetadata("action"), middleware.KeyFromUUID),
				Retention:   time.Hour,
			}},
		})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
		router.AddMiddleware(inbox.Middleware)
		router.AddConsumerHandler("orders", "orders", broker, func(msg *message.Message) error { return effect(msg.Context()) })
		run(t, router.Run, router.Running(), router.Close)

		messages := hostileMessages()
		require.NoError(t, broker.Publish("orders", messages...))
		// The last one, published when all the others have been decided, shows that none of them came again.
		settled := func(want int) func() bool {
			return func() bool {
				events.mu.Lock()
				defer events.mu.Unlock()
				return len(events.events) >= want
			}
		}
		require.Eventually(t, settled(len(messages)), patience, time.Millisecond)
		require.NoError(t, broker.Publish("orders", message.NewMessage("last", []byte(`{}`))))
		require.Eventually(t, settled(len(messages)+1), patience, time.Millisecond)

		events.mu.Lock()
		defer events.mu.Unlock()
		require.Len(t, events.events, len(messages)+1)
		accepted := 0
		for _, event := range events.events {
			require.NoError(t, event.Err)
			if event.Outcome == middleware.OutcomeAccepted {
				accepted++
			}
		}
		require.Positive(t, accepted)
		ledger.requireEntries(t, accepted)
		ledger.requireEffects(t, accepted)
		require.Len(t, poison.all(), len(messages)+1-accepted)
	})
}
