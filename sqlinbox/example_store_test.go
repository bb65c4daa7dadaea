package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "modernc.org/sqlite"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

// NewStore refuses a database on which the inbox could not work, and names the cure.
func ExampleNewStore() {
	db := exampleDatabase()
	defer db.Close()

	_, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.SQLite{}, Table: "shop_inbox"})
	fmt.Println(err != nil)

	store, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.SQLite{}, Table: "shop_inbox", InitializeSchema: true})
	exampleMust(err)
	defer store.Close()
	fmt.Println(exampleCount(db, "shop_inbox"), "entries")
	// Output:
	// true
	// 0 entries
}

// A repository that gets only a context finds the transaction there.
func ExampleTxFromContext() {
	addInvoice := func(ctx context.Context, orderID string) error {
		tx, ok := sqlinbox.TxFromContext(ctx)
		if !ok {
			return sqlinbox.ErrNoTransaction
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO invoices (order_id) VALUES ($1)`, orderID)
		return err
	}

	db := exampleDatabase()
	defer db.Close()
	service := newExampleService(db, middleware.InboxConfig{})
	service.router.AddConsumerHandler("billing", "orders", service.broker, func(msg *message.Message) error {
		return addInvoice(msg.Context(), msg.UUID)
	})
	defer service.run()()

	for range 2 {
		service.deliver("order-1", `{"cents": 1250}`)
	}
	fmt.Println(exampleCount(db, "invoices"), "invoice")
	fmt.Println(addInvoice(context.Background(), "order-2"))
	// Output:
	// 1 invoice
	// no transaction in context; is Inbox.Middleware added to the router or to this handler?
}

// Messages that a handler returns join the transaction through InboxConfig.Outbox. After the commit, a Forwarder
// publishes them.
func ExampleHandler() {
	db := exampleDatabase()
	defer db.Close()
	outbox, err := sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: db, Dialect: sqlinbox.SQLite{}, InitializeSchema: true})
	exampleMust(err)
	service := newExampleService(db, middleware.InboxConfig{Outbox: outbox})
	service.router.AddHandler("billing", "orders", service.broker, "invoices", service.broker,
		sqlinbox.Handler(func(tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(msg.Context(), `INSERT INTO invoices (order_id) VALUES ($1)`, msg.UUID)
			return []*message.Message{message.NewMessage("invoice-for-"+msg.UUID, nil)}, err
		}))
	defer service.run()()

	for range 2 {
		service.deliver("order-1", `{"cents": 1250}`)
	}
	fmt.Println(exampleCount(db, "invoices"), "invoice,", exampleCount(db, "inbox_outbox"), "message to publish")
	// Output:
	// 1 invoice, 1 message to publish
}

// The handler gets the transaction as an argument. What it writes there is committed together with the entry, or
// not at all.
func ExampleNoPublishHandler() {
	db := exampleDatabase()
	defer db.Close()
	service := newExampleService(db, middleware.InboxConfig{Observer: exampleObserver{}})
	failing := true
	service.router.AddConsumerHandler("billing", "orders", service.broker,
		sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
			if _, err := tx.ExecContext(msg.Context(), `INSERT INTO invoices (order_id) VALUES ($1)`, msg.UUID); err != nil {
				return err
			}
			if failing {
				failing = false
				return errors.New("printer is out of paper") // rolls the invoice back; the broker delivers again
			}
			return nil
		}))
	defer service.run()()

	service.deliver("order-1", `{"cents": 1250}`)
	fmt.Println(exampleCount(db, "invoices"), "invoice,", exampleCount(db, "inbox"), "entry")
	// Output:
	// error: printer is out of paper
	// accepted
	// 1 invoice, 1 entry
}

// exampleService is a router with the inbox on a broker in memory, whose Publish returns after the message is acked.
type exampleService struct {
	router *message.Router
	broker *gochannel.GoChannel
}

func newExampleService(db *sql.DB, config middleware.InboxConfig) exampleService {
	var err error
	config.Store, err = sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.SQLite{}, InitializeSchema: true})
	exampleMust(err)
	inbox, err := middleware.NewInbox(config)
	exampleMust(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	exampleMust(err)
	router.AddMiddleware(inbox.Middleware)
	return exampleService{
		router: router,
		broker: gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{}),
	}
}

// run starts the router; what it returns stops it.
func (s exampleService) run() (stop func()) {
	go func() { exampleMust(s.router.Run(context.Background())) }()
	<-s.router.Running()
	return func() { exampleMust(s.router.Close()) }
}

func (s exampleService) deliver(id, payload string) {
	exampleMust(s.broker.Publish("orders", message.NewMessage(id, message.Payload(payload))))
}

func exampleDatabase() *sql.DB {
	db, err := sql.Open("sqlite", ":memory:")
	exampleMust(err)
	db.SetMaxOpenConns(1)
	_, err = db.Exec(`
CREATE TABLE invoices (order_id TEXT NOT NULL)`)
	exampleMust(err)
	return db
}

func exampleCount(db *sql.DB, table string) (rows int) {
	exampleMust(db.QueryRow(`SELECT count(*) FROM ` + table).Scan(&rows))
	return rows
}

// exampleObserver prints what each delivery came to.
type exampleObserver struct{}

func (exampleObserver) ObserveDelivery(event middleware.DeliveryEvent) {
	if event.Err != nil {
		fmt.Printf("%s: %v\n", event.Outcome, event.Err)
		return
	}
	fmt.Println(event.Outcome)
}

func exampleMust(err error) {
	if err != nil {
		panic(err)
	}
}
