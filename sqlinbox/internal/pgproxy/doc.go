// Package pgproxy is a TCP proxy between a pool and PostgreSQL that understands the framing of the wire
// protocol. Tests use it to count the errors that the server reports, to see the order of the statements, and
// to cut or hold a connection at a chosen moment of a statement.
package pgproxy
