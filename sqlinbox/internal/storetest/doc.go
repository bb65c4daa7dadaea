// Package storetest holds the core claims about a Store on PostgreSQL, for every driver that may be under it.
package storetest
