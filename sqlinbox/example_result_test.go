package sqlinbox_test

import (
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

// A request whose answer got lost comes again. Its handler does not run a second time: the answer is given from the
// result that was kept with the entry.
func ExampleSetResult() {
	db := exampleDatabase()
	defer db.Close()
	service := newExampleService(db, middleware.InboxConfig{
		Handlers: map[string]middleware.HandlerConfig{"billing": {
			OnDuplicate: func(params middleware.OnDuplicateParams) error {
				fmt.Println("answering again:", params.Stored.ResultReference)
				return nil
			},
		}},
	})
	service.router.AddConsumerHandler("billing", "orders", service.broker,
		sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
			_, err := tx.ExecContext(msg.Context(), `INSERT INTO invoices (order_id) VALUES ($1)`, msg.UUID)
			if err != nil {
				return err
			}
			fmt.Println("invoice written")
			return sqlinbox.SetResult(msg.Context(), "invoice/"+msg.UUID)
		}))
	defer service.run()()

	for range 2 {
		service.deliver("order-1", `{"cents": 1250}`)
	}
	// Output:
	// invoice written
	// answering again: invoice/order-1
}
