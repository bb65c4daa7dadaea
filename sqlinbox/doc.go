// Package sqlinbox keeps the inbox of package middleware in a SQL database and gives handlers its transaction.
//
// Store writes the entry and runs the handler in one transaction of its own, on a *sql.DB that the user
// opens, with any driver of the dialect. A handler reaches the transaction as an argument (Handler,
// NoPublishHandler), or by TxFromContext from the message's context.
//
// The transaction of a watermill-sql subscriber is not joined: that subscriber delivers a message again
// inside of its transaction after a nack, and what the failed attempt had written would be committed.
//
// This package imports middleware and links no driver.
package sqlinbox
