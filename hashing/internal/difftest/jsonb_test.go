//go:build !embedded

package difftest

import (
	"database/sql"
	"os"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
)

// TestAPayloadThatWentThroughJSONBIsEqual also with numbers of more than 15 digits: jsonb keeps decimals.
func TestAPayloadThatWentThroughJSONBIsEqual(t *testing.T) {
	t.Parallel()
	server := os.Getenv("INBOX_TEST_POSTGRESQL")
	require.NotEmpty(t, server, "INBOX_TEST_POSTGRESQL is not set; run the tests below .ci/servers run --")
	db, err := sql.Open("postgres", server)
	require.NoError(t, err)
	defer db.Close()

	hasher := newHasher(t)
	for _, document := range append(documents,
		`{"id":9007199254740993,"amount":123456789012345678901234567890.123456789}`, `[1e30, 1e-30, 0.1000000000000000055511151231257827]`) {
		var again string
		require.NoError(t, db.QueryRow(`SELECT $1::text::jsonb::text`, document).Scan(&again))
		before, err := hasher.Hash(message.NewMessage("", []byte(document)))
		require.NoError(t, err)
		after, err := hasher.Hash(message.NewMessage("", []byte(again)))
		require.NoError(t, err)
		require.Equal(t, before, after, "jsonb makes %s of %s", again, document)
	}
}
