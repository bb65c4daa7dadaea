package sqlinbox_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

type orderPlaced struct{ OrderID string }

// Handlers of cqrs find the transaction in their context. Guard, in the hook that cqrs calls around each of them, makes
// sure that it is there, and that a failure is never committed.
func ExampleGuard() {
	db := exampleDatabase()
	defer db.Close()
	service := newExampleService(db, middleware.InboxConfig{Observer: exampleObserver{}})

	marshaler := cqrs.JSONMarshaler{}
	processor, err := cqrs.NewEventProcessorWithConfig(service.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return "orders", nil },
		SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return service.broker, nil
		},
		OnHandle: func(params cqrs.EventProcessorOnHandleParams) error {
			ctx := params.Message.Context()
			return sqlinbox.Guard(ctx, params.Handler.HandlerName(), func(*sql.Tx) error {
				return params.Handler.Handle(ctx, params.Event)
			})
		},
		Marshaler: marshaler,
	})
	exampleMust(err)
	exampleMust(processor.AddHandlers(cqrs.NewEventHandler("billing", func(ctx context.Context, event *orderPlaced) error {
		tx, ok := sqlinbox.TxFromContext(ctx)
		if !ok {
			return sqlinbox.ErrNoTransaction
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO invoices (order_id) VALUES ($1)`, event.OrderID)
		return err
	})))
	defer service.run()()

	msg, err := marshaler.Marshal(orderPlaced{OrderID: "order-1"})
	exampleMust(err)
	for range 2 {
		exampleMust(service.broker.Publish("orders", msg))
	}
	var eventType string
	exampleMust(db.QueryRow(`SELECT event_type FROM inbox`).Scan(&eventType))
	fmt.Println(exampleCount(db, "invoices"), "invoice for", eventType)
	// Output:
	// accepted
	// duplicate
	// 1 invoice for sqlinbox_test.orderPlaced
}
