// Package testdb gives each test a database of its own.
//
// The servers are named by INBOX_TEST_POSTGRESQL and INBOX_TEST_AMQP, which make test sets. A test that needs
// one that is not named fails and says so. With the build tag "embedded" only the databases that need no
// server are offered, and files that need one carry the tag "!embedded".
package testdb
