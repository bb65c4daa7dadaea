package main

import (
	"database/sql"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
)

// openDatabase opens a database in memory. It lives as long as its one connection.
func openDatabase() (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	// The table would take a second invoice for one order: only the inbox is in its way.
	_, err = db.Exec(`CREATE TABLE invoices (order_id TEXT NOT NULL, cents INTEGER NOT NULL)`)
	return db, err
}

// bill is the business effect. It writes through tx, the transaction in which the inbox has written its entry.
func bill(tx *sql.Tx, msg *message.Message) error {
	var order struct{ Cents int64 }
	if err := json.Unmarshal(msg.Payload, &order); err != nil {
		return err
	}
	_, err := tx.ExecContext(msg.Context(),
		`INSERT INTO invoices (order_id, cents) VALUES ($1, $2)`, msg.UUID, order.Cents)
	return err
}
