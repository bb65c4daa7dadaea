package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

const contractVersion = "1"

// consumer is the service: a router with the inbox, the handlers of both ends, and the relay between them.
type consumer struct {
	router  *message.Router
	store   *sqlinbox.Store
	poison  *amqp.Publisher
	relay   *relay
	stopped chan error
}

func startConsumer(ctx context.Context, config config, db *sql.DB, tally *tally) (*consumer, error) {
	store, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}, InitializeSchema: true})
	if err != nil {
		return nil, err
	}
	outbox, err := sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: db, Dialect: sqlinbox.PostgreSQL{}, InitializeSchema: true})
	if err != nil {
		return nil, err
	}
	poison, err := amqp.NewPublisher(publisherConfig(config), logger)
	if err != nil {
		return nil, withoutURL("cannot connect to RabbitMQ", err)
	}
	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store:       store,
		Outbox:      outbox, // what placeOrder returns is committed with the order
		PoisonQueue: middleware.PoisonQueue{Publisher: poison, Topic: config.poisonQueue()},
		Handlers: map[string]middleware.HandlerConfig{
			"place-order": {
				Consumer: ordersConsumer,
				Owner:    "checkout team",
				Key:      middleware.KeyFromCloudEvents,
				BusinessKey: middleware.JoinKeys(middleware.ConstantKey("place_order"),
					middleware.KeyFromJSON("/customer"), middleware.KeyFromJSON("/order")),
				TenantID:         middleware.KeyFromMetadata("tenant"),
				ContractVersions: []string{contractVersion},
				Retention:        30 * 24 * time.Hour, // longer than any redelivery or redrive may take
			},
		},
		Observer: tally,
	})
	if err != nil {
		return nil, err
	}
	stack, err := middleware.NewStack(middleware.StackConfig{Inbox: inbox, Logger: logger})
	if err != nil {
		return nil, err
	}
	subscriber, err := amqp.NewSubscriber(subscriberConfig(config), logger)
	if err != nil {
		return nil, withoutURL("cannot connect to RabbitMQ", err)
	}
	// The queues must be there before anything is published: RabbitMQ drops what it cannot route.
	for _, queue := range []string{config.ordersQueue(), config.billingQueue(), config.poisonQueue()} {
		if err := subscriber.SubscribeInitialize(queue); err != nil {
			return nil, fmt.Errorf("cannot declare the queue %s: %w", queue, err)
		}
	}

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, logger)
	if err != nil {
		return nil, err
	}
	// The stack is Recoverer, PoisonQueue, Retry, and next to the handler the inbox. Each end has its own.
	router.AddPlugin(inbox.Plugin)
	router.AddHandler("place-order", config.ordersQueue(), parallel{subscriber, config.parallel},
		config.billingQueue(), poison, sqlinbox.Handler(placeOrder)).AddMiddleware(stack...)
	if err := addBilling(router, config, store, subscriber, tally); err != nil {
		return nil, err
	}
	relay, err := startRelay(ctx, config, outbox)
	if err != nil {
		return nil, err
	}

	c := &consumer{router: router, store: store, poison: poison, relay: relay, stopped: make(chan error, 1)}
	go func() { c.stopped <- router.Run(context.WithoutCancel(ctx)) }() // Close ends it
	select {
	case <-router.Running():
		return c, nil
	case err := <-c.stopped:
		return nil, errors.Join(err, relay.Close(), store.Close(), poison.Close())
	}
}

// placeOrder is the effect, and tells billing. Nothing in the orders table would stop a second row for the same order.
func placeOrder(tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	var order struct {
		Order    string `json:"order"`
		Customer string `json:"customer"`
		Cents    int64  `json:"cents"`
	}
	if err := json.Unmarshal(msg.Payload, &order); err != nil {
		return nil, err
	}
	_, err := tx.ExecContext(msg.Context(), `INSERT INTO orders (order_number, customer, cents) VALUES ($1, $2, $3)`,
		order.Order, order.Customer, order.Cents)
	if err != nil {
		return nil, err
	}
	// No UUID: the outbox derives one, the same each time.
	placed := message.NewMessage("", fmt.Appendf(nil, `{"order":%q,"cents":%d}`, order.Order, order.Cents))
	return []*message.Message{placed}, sqlinbox.SetResult(msg.Context(), "order/"+order.Order)
}

// Close lets the handlers that run finish.
func (c *consumer) Close() error {
	return errors.Join(c.router.Close(), <-c.stopped, c.relay.Close(), c.poison.Close(), c.store.Close())
}
