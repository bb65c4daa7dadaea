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

// relay ships what placeOrder has produced to the broker.
type relay struct {
	forwarder *sqlinbox.Forwarder
	publisher *amqp.Publisher
	stopped   chan error
}

func startRelay(ctx context.Context, config config, outbox *sqlinbox.Outbox) (*relay, error) {
	publisher, err := amqp.NewPublisher(publisherConfig(config), logger)
	if err != nil {
		return nil, withoutURL("cannot connect to RabbitMQ", err)
	}
	forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{Outbox: outbox, Publisher: publisher, PollInterval: 20 * time.Millisecond, Logger: logger})
	if err != nil {
		return nil, errors.Join(err, publisher.Close())
	}
	r := &relay{forwarder: forwarder, publisher: publisher, stopped: make(chan error, 1)}
	go func() { r.stopped <- forwarder.Run(context.WithoutCancel(ctx)) }() // Close ends it
	select {
	case <-forwarder.Running():
		return r, nil
	case err := <-r.stopped:
		return nil, errors.Join(err, publisher.Close())
	}
}

func (r *relay) Close() error {
	return errors.Join(r.forwarder.Close(), <-r.stopped, r.publisher.Close())
}

// addBilling is the other end: a consumer of its own, with its own entries. It could be another service with another
// database. The relay may publish a message twice, with one UUID.
func addBilling(router *message.Router, config config, store *sqlinbox.Store, subscriber message.Subscriber, tally *tally) error {
	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store:    store,
		Handlers: map[string]middleware.HandlerConfig{"bill-order": {Consumer: billingConsumer, Owner: "billing team"}},
		Observer: billingTally{tally},
	})
	if err != nil {
		return err
	}
	stack, err := middleware.NewStack(middleware.StackConfig{Inbox: inbox, Logger: logger})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bill-order", config.billingQueue(), parallel{subscriber, config.parallel},
		sqlinbox.NoPublishHandler(billOrder)).AddMiddleware(stack...)
	router.AddPlugin(inbox.Plugin)
	return nil
}

const (
	ordersConsumer  = "orders.place-order" // outlives a renaming of the handler
	billingConsumer = "billing.bill-order"
)

// billOrder is the effect at the other end. Nothing in the table would stop a second row.
func billOrder(tx *sql.Tx, msg *message.Message) error {
	var placed struct {
		Order string `json:"order"`
		Cents int64  `json:"cents"`
	}
	if err := json.Unmarshal(msg.Payload, &placed); err != nil {
		return fmt.Errorf("cannot read a placed order: %w", err)
	}
	_, err := tx.ExecContext(msg.Context(), `INSERT INTO bills (order_number, cents) VALUES ($1, $2)`, placed.Order, placed.Cents)
	return err
}

// outboxWaiting is the number of messages that the relay has not marked as forwarded.
func outboxWaiting(ctx context.Context, db *sql.DB) (waiting int64, err error) {
	err = db.QueryRowContext(ctx, `
SELECT count(*)
FROM inbox_outbox
WHERE (transaction_id, "offset") > (
    SELECT last_processed_transaction_id, offset_acked
    FROM inbox_outbox_offsets
    WHERE consumer_group = 'forwarder')`).Scan(&waiting)
	return waiting, err
}
