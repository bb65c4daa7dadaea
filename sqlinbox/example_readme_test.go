//go:build !embedded

package sqlinbox_test

import (
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
)

// addBilling is the code that the README shows.
func addBilling(router *message.Router, db *sql.DB, sub message.Subscriber, pub message.Publisher) error {
	// README begin
	store, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}, InitializeSchema: true})
	if err != nil {
		return err
	}
	inbox, err := middleware.NewInbox(middleware.InboxConfig{
		Store:       store,
		PoisonQueue: middleware.PoisonQueue{Publisher: pub, Topic: "orders.poison"},
	})
	if err != nil {
		return err
	}
	router.AddMiddleware(inbox.Middleware) // the one line; last, next to the handler
	router.AddPlugin(inbox.Plugin)         // refuses to start on a mistyped handler name or an unusable store

	router.AddConsumerHandler("billing", "orders", sub, sqlinbox.NoPublishHandler(
		func(tx *sql.Tx, msg *message.Message) error {
			_, err := tx.ExecContext(msg.Context(), `INSERT INTO invoices (order_id) VALUES ($1)`, msg.UUID)
			return err // nil: invoice and inbox entry are committed together, then the message is acked
		}))
	// README end
	return nil
}
