package middleware_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

func TestNewInboxNamesTheProblemOfItsConfigAndTheCure(t *testing.T) {
	t.Parallel()
	type handlers = map[string]middleware.HandlerConfig
	publisher := &recorder{}
	for _, test := range []struct {
		name   string
		change func(*middleware.InboxConfig)
		says   []string
	}{
		{
			name:   "nil store",
			change: func(c *middleware.InboxConfig) { c.Store = nil },
			says:   []string{"store is nil", "set InboxConfig.Store"},
		},
		{
			name:   "nil pointer as the store, of a constructor whose error was ignored",
			change: func(c *middleware.InboxConfig) { c.Store = (*memory)(nil) },
			says:   []string{"store is nil", "set InboxConfig.Store"},
		},
		{
			name:   "poison queue without topic",
			change: func(c *middleware.InboxConfig) { c.PoisonQueue.Publisher = publisher },
			says:   []string{"poison queue: topic is empty", "set PoisonQueue.Topic"},
		},
		{
			name:   "poison queue without publisher",
			change: func(c *middleware.InboxConfig) { c.PoisonQueue.Topic = "orders.poison" },
			says:   []string{`poison queue: topic "orders.poison" has no publisher`, "set PoisonQueue.Publisher"},
		},
		{
			name: "nil pointer as the publisher of the poison queue",
			change: func(c *middleware.InboxConfig) {
				c.PoisonQueue = middleware.PoisonQueue{Publisher: (*gochannel.GoChannel)(nil), Topic: "orders.poison"}
			},
			says: []string{"publisher is a nil *gochannel.GoChannel"},
		},
		{
			name:   "nil pointer as the outbox",
			change: func(c *middleware.InboxConfig) { c.Outbox = (*gochannel.GoChannel)(nil) },
			says:   []string{"outbox is a nil *gochannel.GoChannel"},
		},
		{
			name:   "retention shorter than nothing",
			change: func(c *middleware.InboxConfig) { c.Handlers = handlers{"billing": {Retention: -time.Hour}} },
			says:   []string{`handler "billing"`, "retention -1h0m0s is negative", "zero keeps entries for ever"},
		},
		{
			name:   "retention that is gone before a redelivery comes",
			change: func(c *middleware.InboxConfig) { c.Handlers = handlers{"billing": {Retention: time.Millisecond}} },
			says:   []string{`handler "billing"`, "retention 1ms is below one second"},
		},
		{
			name:   "consumer name with NUL",
			change: func(c *middleware.InboxConfig) { c.Handlers = handlers{"billing": {Consumer: "a\x00b"}} },
			says:   []string{`handler "billing"`, "valid UTF-8 without NUL"},
		},
		{
			name: "empty contract version",
			change: func(c *middleware.InboxConfig) {
				c.Handlers = handlers{"billing": {ContractVersions: []string{"1", ""}}}
			},
			says: []string{`handler "billing"`, "an accepted contract version is empty"},
		},
		{
			name: "two handlers that are one consumer",
			change: func(c *middleware.InboxConfig) {
				c.Handlers = handlers{"billing": {Consumer: "shop"}, "shipping": {Consumer: "shop"}}
			},
			says: []string{`handlers "billing" and "shipping" have one consumer name "shop"`, "give each its own"},
		},
		{
			name: "everything at once",
			change: func(c *middleware.InboxConfig) {
				*c = middleware.InboxConfig{
					PoisonQueue: middleware.PoisonQueue{Topic: "orders.poison"},
					Handlers:    handlers{"billing": {Retention: -1}},
				}
			},
			says: []string{"store is nil", "has no publisher", "is negative"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := middleware.InboxConfig{Store: &memory{}}
			test.change(&config)
			inbox, err := middleware.NewInbox(config)
			require.Nil(t, inbox)
			for _, text := range append(test.says, "invalid inbox config") {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestThePluginRefusesAConsumerNameThatAnotherHandlerHasByDefault(t *testing.T) {
	t.Parallel()
	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store:    &memory{},
		Handlers: map[string]middleware.HandlerConfig{"billing": {Consumer: "shipping"}},
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	for _, name := range []string{"billing", "shipping"} {
		router.AddConsumerHandler(name, "orders", gochannel.NewGoChannel(gochannel.Config{}, nil), func(*message.Message) error { return nil })
	}
	err = inbox.Plugin(router)
	require.ErrorContains(t, err, `handler "billing" has the consumer name "shipping"`)
	require.ErrorContains(t, err, `InboxConfig.Handlers["shipping"]`)
}
