package inboxamqp_test

import (
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

func TestHostileHeadersNeitherFailNorReachABound(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string]amqp091.Table{
		"10 deep":            {"h": nested(10, "x")},
		"30 deep":            {"h": nested(30, "x")},
		"20000 deep":         {"h": nested(20000, "x")},
		"64 kB in a table":   {"h": amqp091.Table{"a": strings.Repeat("\x00", 64<<10)}},
		"a long string":      {"h": strings.Repeat("a", 120<<10)},
		"no UTF-8":           {"\xff\xfe": "\xff\xfe", "h": amqp091.Table{"\xff": []byte{0xff}}},
		"an unnamed header":  {"": "x"},
		"x-death of numbers": {"x-death": int32(1), "x-delivery-count": "many"},
		"our properties":     {"amqp_timestamp": "yesterday", "amqp_type": strings.Repeat("t", 300), "amqp_redelivered": true},
		"long identity":      {"_watermill_message_uuid": strings.Repeat("u", 70<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			delivery := amqp091.Delivery{Headers: headers, MessageId: "id"}
			requireSurvives(t, delivery, name)
			for key, value := range unmarshal(t, delivery).Metadata {
				if _, isString := headers[key].(string); !isString {
					assert.LessOrEqual(t, len(value), 64<<10, "metadata %q", key)
				}
			}
		})
	}
}

func TestWhatAForeignTransportCarriedUnderOurNamesDoesNotKeepAMessageFromBeingSent(t *testing.T) {
	t.Parallel()
	msg := unmarshal(t, amqp091.Delivery{MessageId: "id"})
	msg.Metadata[inboxamqp.TimestampKey] = "yesterday"
	msg.Metadata[inboxamqp.ReplyToKey] = strings.Repeat("r", 256)
	publishing, err := inboxamqp.Marshaler{}.Marshal(msg)
	require.NoError(t, err)
	assert.True(t, publishing.Timestamp.IsZero())
	assert.Empty(t, publishing.ReplyTo)
}

func TestEmptyAndLargeBodiesAreKept(t *testing.T) {
	t.Parallel()
	for _, body := range [][]byte{nil, {}, []byte(strings.Repeat("b", 16<<20))} {
		delivery := amqp091.Delivery{MessageId: "id", Body: body}
		assert.True(t, string(body) == string(unmarshal(t, delivery).Payload))
		assert.True(t, string(body) == string(hop(t, delivery).Body))
	}
}
