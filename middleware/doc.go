// Package middleware is a transactional inbox for Watermill: a router middleware after which a message that
// the broker delivers twice has its effect once.
//
// Effects in the transaction happen once per consumer and message key: the inbox entry and the handler's own
// SQL writes commit in one transaction, and the ack comes after the commit. What the handler does outside of
// that transaction (a call to another system, a message that it publishes by itself) is not covered.
//
//	store, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}, InitializeSchema: true})
//	inbox, err := middleware.NewInbox(middleware.InboxConfig{Store: store})
//	router.AddMiddleware(inbox.Middleware)
//
// The order of the middlewares, outermost first; NewStack makes it:
//
//	Recoverer, PoisonQueue, Retry, (Timeout), Inbox, handler
//
// What one delivery comes to is its Outcome. Keys come from a KeyExtractor, payload hashes from package
// hashing, entries are kept by a Store: sqlinbox.Store is one over database/sql.
//
// This package knows messages, keys and outcomes, and no SQL. It imports Watermill and package hashing.
package middleware
