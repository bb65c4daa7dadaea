package sqlinbox

import (
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

func scanStored(row *sql.Row) (middleware.StoredEntry, error) {
	var (
		stored                  middleware.StoredEntry
		receivedAt, processedAt instant
		result, duplicateOf     sql.NullString
	)
	err := row.Scan(&stored.MessageKey, &stored.PayloadHash, &receivedAt, &processedAt, &result, &duplicateOf)
	stored.ReceivedAt, stored.ProcessedAt = time.Time(receivedAt), time.Time(processedAt)
	stored.ResultReference, stored.DuplicateOf = result.String, duplicateOf.String
	return stored, err
}

// instant scans a time that the driver gives as a time or, with SQLite, as text.
type instant time.Time

// Scan implements sql.Scanner.
func (i *instant) Scan(value any) error {
	switch value := value.(type) {
	case time.Time:
		*i = instant(value)
		return nil
	case string:
		t, err := time.Parse(sqliteTime, value)
		*i = instant(t)
		return err
	default:
		return fmt.Errorf("a time column holds %T, not a time", value)
	}
}
