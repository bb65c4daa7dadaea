//go:build !embedded

package sqlinbox_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

func TestTheCodeOfTheReadmeDoesWhatItSays(t *testing.T) {
	t.Parallel()
	db := testdb.PostgreSQL().Open(t)
	_, err := db.Exec(`CREATE TABLE invoices (order_id text NOT NULL)`)
	require.NoError(t, err)
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	poisonQueue := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	poisoned, err := poisonQueue.Subscribe(t.Context(), "orders.poison")
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)

	require.NoError(t, addBilling(router, db, broker, poisonQueue))

	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(t.Context()) }()
	<-router.Running()
	for _, payload := range []string{`{"cents": 1250}`, `{"cents": 1250}`, `{"cents": 999999}`} {
		require.NoError(t, broker.Publish("orders", message.NewMessage("order-1", message.Payload(payload))))
	}
	msg := <-poisoned
	msg.Ack()
	require.Equal(t, `{"cents": 999999}`, string(msg.Payload))
	var entries, invoices int
	require.NoError(t, db.QueryRow(`SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM invoices)`).Scan(&entries, &invoices))
	require.Equal(t, 1, entries)
	require.Equal(t, 1, invoices)

	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)
}
