//go:build embedded

package testdb

// All are the kinds of database that tests run on: here those that need no server.
func All() []Database {
	return []Database{SQLite()}
}
