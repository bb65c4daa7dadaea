package inboxamqp_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/hashing"
	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

func TestTheUUIDIsTheHeaderElseTheMessageID(t *testing.T) {
	t.Parallel()
	const header = amqp.DefaultMessageUUIDHeaderKey
	for _, test := range []struct {
		headers   amqp091.Table
		messageID string
		uuid      string
		reason    string
	}{
		{amqp091.Table{header: "h"}, "p", "h", "a Watermill peer says it itself"},
		{nil, "p", "p", "another peer uses the property"},
		{amqp091.Table{header: ""}, "p", "p", "empty is as good as none"},
		{amqp091.Table{header: int32(5)}, "p", "p", "a number is no UUID of Watermill"},
		{amqp091.Table{header: amqp091.Table{"a": "b"}}, "", "", "no error: the key extractor refuses it"},
		{nil, "", "", "no error: the key extractor refuses it"},
	} {
		msg := unmarshal(t, amqp091.Delivery{Headers: test.headers, MessageId: test.messageID})
		assert.Equal(t, test.uuid, msg.UUID, test.reason)
		assert.NotContains(t, msg.Metadata, header, "the UUID is no metadata")
	}
}

func TestTheUUIDHeaderCanHaveAnotherName(t *testing.T) {
	t.Parallel()
	marshaler := inboxamqp.Marshaler{MessageUUIDHeaderKey: "id"}
	publishing, err := marshaler.Marshal(message.NewMessage("u", nil))
	require.NoError(t, err)
	assert.Equal(t, amqp091.Table{"id": "u"}, publishing.Headers)

	msg, err := marshaler.Unmarshal(amqp091.Delivery{Headers: publishing.Headers})
	require.NoError(t, err)
	assert.Equal(t, "u", msg.UUID)
	assert.NotContains(t, msg.Metadata, "id")
}

func TestPropertiesAndDeliveryAreMetadata(t *testing.T) {
	t.Parallel()
	delivery := fullDelivery()
	assert.Equal(t, message.Metadata{
		inboxamqp.RedeliveredKey:     "true",
		inboxamqp.DeliveryCountKey:   "3",
		inboxamqp.ExchangeKey:        "ex",
		inboxamqp.RoutingKeyKey:      "rk",
		inboxamqp.ContentTypeKey:     "text/plain",
		inboxamqp.ContentEncodingKey: "gzip",
		inboxamqp.CorrelationIDKey:   "corr",
		inboxamqp.MessageTypeKey:     "order.created",
		inboxamqp.AppIDKey:           "shop",
		inboxamqp.ReplyToKey:         "answers",
		inboxamqp.TimestampKey:       "2024-02-29T12:00:00Z",
		"x-delivery-count":           "3",
	}, unmarshal(t, delivery).Metadata)
}

func TestABareDeliverySaysOnlyThatItIsNotRedelivered(t *testing.T) {
	t.Parallel()
	msg := unmarshal(t, amqp091.Delivery{})
	assert.Equal(t, message.Metadata{inboxamqp.RedeliveredKey: "false"}, msg.Metadata)
	assert.Empty(t, msg.Payload)
}

func TestAHeaderCannotSayWhatTheBrokerSays(t *testing.T) {
	t.Parallel()
	forged := amqp091.Table{}
	for _, name := range []string{
		inboxamqp.RedeliveredKey, inboxamqp.DeliveryCountKey, inboxamqp.ExchangeKey, inboxamqp.RoutingKeyKey,
		inboxamqp.ContentEncodingKey, inboxamqp.MessageTypeKey, inboxamqp.AppIDKey, inboxamqp.ReplyToKey, inboxamqp.TimestampKey,
	} {
		forged[name] = "forged"
	}
	bare := unmarshal(t, amqp091.Delivery{Headers: forged})
	assert.Equal(t, message.Metadata{inboxamqp.RedeliveredKey: "false"}, bare.Metadata, "not even where the broker says nothing")

	delivery := fullDelivery()
	honest := unmarshal(t, delivery)
	for name := range honest.Metadata {
		if name != "x-delivery-count" {
			delivery.Headers[name] = "forged"
		}
	}
	assert.Equal(t, honest.Metadata, unmarshal(t, delivery).Metadata)
}

func TestHeadersOfDefaultMarshalersPeersCountWhereThePropertyIsEmpty(t *testing.T) {
	t.Parallel()
	msg := unmarshal(t, amqp091.Delivery{Headers: amqp091.Table{"content-type": "text/xml", "correlation_id": "c"}})
	assert.Equal(t, "text/xml", msg.Metadata[inboxamqp.ContentTypeKey])
	assert.Equal(t, "c", msg.Metadata[inboxamqp.CorrelationIDKey])
}

func TestTheDeliveryCountIsAnIntegerOrNone(t *testing.T) {
	t.Parallel()
	for _, value := range []any{byte(2), int8(2), int16(2), int32(2), int64(2), int(2)} {
		msg := unmarshal(t, amqp091.Delivery{Headers: amqp091.Table{"x-delivery-count": value}})
		assert.Equal(t, "2", msg.Metadata[inboxamqp.DeliveryCountKey], "%T", value)
	}
	for _, value := range []any{nil, "2", 2.0, true, int64(-1), amqp091.Table{}} {
		msg := unmarshal(t, amqp091.Delivery{Headers: amqp091.Table{"x-delivery-count": value}})
		assert.NotContains(t, msg.Metadata, inboxamqp.DeliveryCountKey, "%T %v", value, value)
	}
}

func TestAVoidHeaderIsNoKey(t *testing.T) {
	t.Parallel()
	msg := unmarshal(t, amqp091.Delivery{Headers: amqp091.Table{"order_id": nil, "cloudEvents:id": nil, "cloudEvents:source": "/shop"}})
	for _, extractor := range []middleware.KeyExtractor{middleware.KeyFromMetadata("order_id"), middleware.KeyFromCloudEvents} {
		_, err := extractor.ExtractKey(msg)
		require.ErrorIs(t, err, middleware.ErrNoKey)
	}
}

func TestCloudEventsAreFoundInBothModes(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"cloudEvents:", "cloudEvents_"} {
		msg := unmarshal(t, amqp091.Delivery{Headers: amqp091.Table{prefix + "id": "e1", prefix + "time": time.Unix(0, 0), prefix + "count": int32(4)}})
		for name, want := range map[string]string{"id": "e1", "time": "1970-01-01T00:00:00Z", "count": "4"} {
			value, _, err := hashing.EventAttribute(msg, name)
			require.NoError(t, err)
			assert.Equal(t, want, value)
		}
		publishing := marshal(t, msg)
		assert.Equal(t, "e1", publishing.Headers[prefix+"id"], "the prefix is kept on the way out")
	}

	structured := unmarshal(t, amqp091.Delivery{
		Headers:     amqp091.Table{"content-type": "text/plain", "Content-Type": "text/plain"},
		ContentType: "application/cloudevents+json; charset=utf-8",
		Body:        []byte(`{"id":"e2"}`),
	})
	value, _, err := hashing.EventAttribute(structured, "id")
	require.NoError(t, err)
	assert.Equal(t, "e2", value, "the property says that it is structured, and headers that say otherwise do not count")
}

func fullDelivery() amqp091.Delivery {
	return amqp091.Delivery{
		Headers:         amqp091.Table{"x-delivery-count": int64(3)},
		ContentType:     "text/plain",
		ContentEncoding: "gzip",
		CorrelationId:   "corr",
		ReplyTo:         "answers",
		MessageId:       "id",
		Timestamp:       time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
		Type:            "order.created",
		AppId:           "shop",
		Expiration:      "1000",
		UserId:          "guest",
		Redelivered:     true,
		Exchange:        "ex",
		RoutingKey:      "rk",
	}
}
