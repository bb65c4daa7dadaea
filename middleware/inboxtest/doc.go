// Package inboxtest is for those who test handlers behind an inbox, and for those who write a Store.
//
// Memory is a Store without a database, for unit tests of a router with an inbox in it. TestStore is the
// conformance suite of middleware.Store: what it claims holds for sqlinbox.Store and for Memory, and a Store
// that decides outside of its database, or in another transaction than the effect's, fails it.
//
// The package imports testing and middleware; no driver and no broker.
package inboxtest
