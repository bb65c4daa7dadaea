// Command quickstart shows what the inbox does, with SQLite in memory and Watermill's GoChannel: no server.
//
// A broker delivers two messages. Both times the ack gets lost after the commit, so it delivers each message
// again, and each still has its effect once. Then a third message comes with a known key and another payload.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "modernc.org/sqlite"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	db, err := openDatabase()
	if err != nil {
		return err
	}
	defer db.Close()

	logger := watermill.NopLogger{}
	// Publish returns when the message is acked for good, so that the lines below come in order.
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	poisonQueue := gochannel.NewGoChannel(gochannel.Config{}, logger)
	poisoned, err := poisonQueue.Subscribe(ctx, "orders.poison")
	if err != nil {
		return err
	}

	store, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.SQLite{}, InitializeSchema: true})
	if err != nil {
		return err
	}
	tally := &tally{}
	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store:       store,
		PoisonQueue: middleware.PoisonQueue{Publisher: poisonQueue, Topic: "orders.poison"},
		Observer:    tally,
	})
	if err != nil {
		return err
	}

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(inbox.Middleware) // the one line; last, next to the handler
	router.AddPlugin(inbox.Plugin)
	router.AddConsumerHandler("billing", "orders", losesFirstAck{broker}, sqlinbox.NoPublishHandler(bill))

	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}

	fmt.Println("Two messages from a broker that loses the first ack of each:")
	if err := broker.Publish("orders", order("order-1", `{"cents": 1250}`), order("order-2", `{"cents": 990}`)); err != nil {
		return err
	}

	fmt.Println("\nA third message with the key of the first and another payload:")
	if err := broker.Publish("orders", order("order-1", `{"cents": 999999}`)); err != nil {
		return err
	}
	if err := showPoisoned(ctx, poisoned); err != nil {
		return err
	}

	if err := router.Close(); err != nil {
		return err
	}
	return report(ctx, db, tally)
}

func order(id, payload string) *message.Message {
	return message.NewMessage(id, message.Payload(payload))
}

func showPoisoned(ctx context.Context, poisoned <-chan *message.Message) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("nothing came to the poison queue: %w", ctx.Err())
	case msg := <-poisoned:
		fmt.Printf("  %s  in the poison queue, with the evidence:\n", msg.UUID)
		fmt.Printf("           stored hash    %s\n", msg.Metadata.Get(middleware.PoisonStoredHashKey))
		fmt.Printf("           poisoned hash  %s\n", msg.Metadata.Get(middleware.PoisonPayloadHashKey))
		msg.Ack()
		return nil
	}
}
