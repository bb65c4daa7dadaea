package middleware_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "modernc.org/sqlite"

	"github.com/watermill-inbox/watermill-inbox/hashing"
	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

// NewInbox reports every problem of its configuration at once.
func ExampleNewInbox() {
	_, err := middleware.NewInbox(middleware.InboxConfig{
		PoisonQueue: middleware.PoisonQueue{Topic: "orders.poison"},
		Handlers:    map[string]middleware.HandlerConfig{"billing": {Retention: -time.Hour}},
	})
	fmt.Println(err)
	// Output:
	// invalid inbox config: poison queue: topic "orders.poison" has no publisher; set PoisonQueue.Publisher
	// store is nil; set InboxConfig.Store, for example to what sqlinbox.NewStore returns
	// handler "billing": retention -1h0m0s is negative; zero keeps entries for ever
}

// A message that is delivered twice has its effect once.
func ExampleInbox_Middleware() {
	store, closeStore := exampleStore()
	defer closeStore()
	inbox, err := middleware.NewInbox(middleware.InboxConfig{Store: store})
	exampleMust(err)

	router, broker := exampleRouter()
	router.AddMiddleware(inbox.Middleware) // the one line; last, next to the handler
	router.AddConsumerHandler("billing", "orders", broker, func(msg *message.Message) error {
		fmt.Println("billing", msg.UUID)
		return nil
	})
	defer exampleRun(router)()

	for range 2 {
		exampleMust(broker.Publish("orders", message.NewMessage("order-1", message.Payload(`{"cents": 1250}`))))
	}
	exampleMust(broker.Publish("orders", message.NewMessage("order-2", message.Payload(`{"cents": 990}`))))
	// Output:
	// billing order-1
	// billing order-2
}

// A handler's name that the router does not know is a typing mistake: the router does not start.
func ExampleInbox_Plugin() {
	store, closeStore := exampleStore()
	defer closeStore()
	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store:    store,
		Handlers: map[string]middleware.HandlerConfig{"biling": {Key: middleware.KeyFromMetadata("order_id")}},
	})
	exampleMust(err)

	router, broker := exampleRouter()
	router.AddMiddleware(inbox.Middleware)
	router.AddPlugin(inbox.Plugin)
	router.AddConsumerHandler("billing", "orders", broker, func(*message.Message) error { return nil })

	_, reason, _ := strings.Cut(router.Run(context.Background()).Error(), ": ") // before it, which plugin
	fmt.Println(reason)
	// Output:
	// InboxConfig.Handlers names handler "biling", but the router has only ["billing"]; correct the name or add the handler before the router runs
}

// A message with a known key and another payload is not a duplicate. It is published to the poison queue, with the
// evidence, and only then acked.
func ExamplePoisonQueue() {
	store, closeStore := exampleStore()
	defer closeStore()
	router, broker := exampleRouter()
	poisonQueue := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	poisoned, err := poisonQueue.Subscribe(context.Background(), "orders.poison")
	exampleMust(err)

	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store:       store,
		PoisonQueue: middleware.PoisonQueue{Publisher: poisonQueue, Topic: "orders.poison"},
	})
	exampleMust(err)
	router.AddMiddleware(inbox.Middleware)
	router.AddConsumerHandler("billing", "orders", broker, func(*message.Message) error { return nil })
	defer exampleRun(router)()

	exampleMust(broker.Publish("orders", message.NewMessage("order-1", message.Payload(`{"cents": 1250}`))))
	exampleMust(broker.Publish("orders", message.NewMessage("order-1", message.Payload(`{"cents": 999999}`))))

	msg := <-poisoned
	msg.Ack()
	fmt.Println(msg.UUID, string(msg.Payload))
	fmt.Println(msg.Metadata.Get(middleware.PoisonOutcomeKey), "in", msg.Metadata.Get(middleware.PoisonConsumerKey))
	// Output:
	// order-1 {"cents": 999999}
	// collision in billing
}

// IsPoison fits Watermill's own poison queue, for who has one already. It belongs outside of the inbox.
func ExampleIsPoison() {
	store, closeStore := exampleStore()
	defer closeStore()
	router, broker := exampleRouter()
	poisonPublisher := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	poisoned, err := poisonPublisher.Subscribe(context.Background(), "orders.poison")
	exampleMust(err)

	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store:    store,
		Handlers: map[string]middleware.HandlerConfig{"billing": {Key: middleware.KeyFromMetadata("order_id")}},
	})
	exampleMust(err)
	poisonQueue, err := wmmiddleware.PoisonQueueWithFilter(poisonPublisher, "orders.poison", middleware.IsPoison)
	exampleMust(err)
	router.AddMiddleware(poisonQueue, inbox.Middleware)
	router.AddConsumerHandler("billing", "orders", broker, func(*message.Message) error { return nil })
	defer exampleRun(router)()

	exampleMust(broker.Publish("orders", message.NewMessage("1", message.Payload(`no order_id in the metadata`))))

	msg := <-poisoned
	msg.Ack()
	fmt.Println(msg.UUID, string(msg.Payload))
	// Output:
	// 1 no order_id in the metadata
}

// NewStack puts Watermill's middlewares and the inbox in their order.
func ExampleNewStack() {
	store, closeStore := exampleStore()
	defer closeStore()
	inbox, err := middleware.NewInbox(middleware.InboxConfig{Store: store})
	exampleMust(err)
	stack, err := middleware.NewStack(middleware.StackConfig{Inbox: inbox, InitialInterval: time.Millisecond})
	exampleMust(err)

	router, broker := exampleRouter()
	router.AddMiddleware(stack...)
	calls := 0
	router.AddConsumerHandler("billing", "orders", broker, func(msg *message.Message) error {
		if calls++; calls < 3 {
			fmt.Println("call", calls, "fails, its transaction is rolled back")
			return fmt.Errorf("mail server is busy")
		}
		fmt.Println("call", calls, "succeeds")
		return nil
	})
	defer exampleRun(router)()

	exampleMust(broker.Publish("orders", message.NewMessage("order-1", nil)))
	// Output:
	// call 1 fails, its transaction is rolled back
	// call 2 fails, its transaction is rolled back
	// call 3 succeeds
}

// Two messages with other ids that ask for the same business action have one effect.
func ExampleHandlerConfig() {
	store, closeStore := exampleStore()
	defer closeStore()
	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store: store,
		Handlers: map[string]middleware.HandlerConfig{
			"followup": {BusinessKey: middleware.JoinKeys(middleware.ConstantKey("create_followup"),
				middleware.KeyFromJSON("/opportunity"), middleware.KeyFromJSON("/meeting"))},
		},
	})
	exampleMust(err)

	router, broker := exampleRouter()
	router.AddMiddleware(inbox.Middleware)
	router.AddConsumerHandler("followup", "meetings", broker, func(msg *message.Message) error {
		fmt.Println("creating a follow-up for", msg.UUID)
		return nil
	})
	defer exampleRun(router)()

	for _, id := range []string{"from-the-calendar", "from-the-mail"} {
		exampleMust(broker.Publish("meetings", message.NewMessage(id, message.Payload(`{"opportunity": "O-7", "meeting": "M-1"}`))))
	}
	// Output:
	// creating a follow-up for from-the-calendar
}

// What changes from copy to copy is left out of the payload hash: without it, the second copy would be a collision.
func ExampleHandlerConfig_hash() {
	hasher, err := hashing.New(hashing.Exclude("/sent_at"))
	exampleMust(err)
	hash, err := hashing.NewVerifier(hasher)
	exampleMust(err)

	store, closeStore := exampleStore()
	defer closeStore()
	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store: store,
		Handlers: map[string]middleware.HandlerConfig{"billing": {
			Hash: hash,
			OnDuplicate: func(params middleware.OnDuplicateParams) error {
				fmt.Println(params.Outcome, "of", params.Stored.MessageKey)
				return nil
			},
		}},
	})
	exampleMust(err)

	router, broker := exampleRouter()
	router.AddMiddleware(inbox.Middleware)
	router.AddConsumerHandler("billing", "orders", broker, func(*message.Message) error { return nil })
	defer exampleRun(router)()

	for _, payload := range []string{
		`{"cents": 1250, "sent_at": "2026-01-02T03:04:05Z"}`,
		`{"sent_at": "2026-01-02T03:09:05Z", "cents": 1250.0}`,
	} {
		exampleMust(broker.Publish("orders", message.NewMessage("order-1", message.Payload(payload))))
	}
	// Output:
	// duplicate of order-1
}

// exampleStore keeps entries in memory, in a database of its own.
func exampleStore() (store *sqlinbox.Store, closeStore func()) {
	db, err := sql.Open("sqlite", ":memory:")
	exampleMust(err)
	db.SetMaxOpenConns(1)
	store, err = sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.SQLite{}, InitializeSchema: true})
	exampleMust(err)
	return store, func() {
		exampleMust(store.Close())
		exampleMust(db.Close())
	}
}

// exampleRouter comes with a broker in memory, whose Publish returns after the message is acked.
func exampleRouter() (*message.Router, *gochannel.GoChannel) {
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	exampleMust(err)
	return router, broker
}

// exampleRun starts the router; what it returns stops it.
func exampleRun(router *message.Router) (stop func()) {
	go func() { exampleMust(router.Run(context.Background())) }()
	<-router.Running()
	return func() { exampleMust(router.Close()) }
}

func exampleMust(err error) {
	if err != nil {
		panic(err)
	}
}
