package inboxamqp_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

// hop is one round through the broker: the delivery that comes of sending what came of a delivery.
func hop(t testing.TB, delivery amqp091.Delivery) amqp091.Delivery {
	t.Helper()
	return deliver(marshal(t, unmarshal(t, delivery)))
}

// lasting is what a message carries from round to round.
func lasting(msg *message.Message) message.Metadata {
	metadata := maps.Clone(msg.Metadata)
	maps.DeleteFunc(metadata, func(name, _ string) bool {
		return strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "amqp_re") && name != inboxamqp.ReplyToKey ||
			name == inboxamqp.DeliveryCountKey || name == inboxamqp.ExchangeKey || name == inboxamqp.RoutingKeyKey
	})
	return metadata
}

func TestAHundredRoundsWithBrokerHeadersAddNothing(t *testing.T) {
	t.Parallel()
	delivery := fullDelivery()
	delivery.Body = []byte("body")
	delivery.Headers = amqp091.Table{"n": int32(5), "t": amqp091.Table{"a": []any{"x"}}, "bad": "\xff\"", "inbox_redriven": "1"}
	first := unmarshal(t, delivery)

	for round := range 100 {
		delivery.Headers["x-death"] = []any{amqp091.Table{"queue": "q", "reason": "expired", "count": int64(round), "time": time.Unix(int64(round), 0)}}
		delivery.Headers["x-first-death-queue"] = "q"
		delivery.Headers["x-last-death-reason"] = "expired"
		delivery.Headers["x-delivery-count"] = int64(round)
		delivery.Headers["CC"] = []any{"elsewhere"}
		delivery.Redelivered = round%2 == 0
		delivery.Exchange, delivery.RoutingKey = "dlx", fmt.Sprint("rk", round)

		msg := unmarshal(t, delivery)
		require.Equal(t, fmt.Sprint(round), msg.Metadata[inboxamqp.DeliveryCountKey], "this round's, not an earlier one's")
		delivery = hop(t, delivery)
		require.Equal(t, first.UUID, delivery.MessageId, "round %d", round)
	}

	last := unmarshal(t, delivery)
	assert.Equal(t, first.UUID, last.UUID)
	assert.Equal(t, first.Payload, last.Payload)
	assert.Equal(t, lasting(first), lasting(last))
	assert.NotContains(t, last.Metadata, "CC")
	for name := range delivery.Headers {
		assert.False(t, strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "amqp_"), "header %s was sent", name)
	}
}

func TestAnyDeliverySurvivesARound(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		delivery := amqp091.Delivery{
			Headers:     amqp091.Table{},
			MessageId:   randomText(random),
			ContentType: randomText(random),
			Type:        randomText(random),
			AppId:       randomText(random),
			Body:        []byte(randomText(random)),
			Redelivered: random.IntN(2) == 0,
		}
		if random.IntN(2) == 0 {
			delivery.Timestamp = time.Unix(int64(random.Uint64())>>random.IntN(64), 0)
		}
		for range random.IntN(6) {
			delivery.Headers[randomText(random)] = randomValue(random, 4)
		}
		requireSurvives(t, delivery, fmt.Sprintf("seed %d", seed))
	}
}

// requireSurvives checks that a second round finds what the first one found.
func requireSurvives(t testing.TB, delivery amqp091.Delivery, note string) {
	t.Helper()
	first := unmarshal(t, delivery)
	again := hop(t, delivery)
	second := unmarshal(t, again)
	require.Equal(t, first.UUID, second.UUID, note)
	require.Equal(t, []byte(first.Payload), []byte(second.Payload), note)
	require.Equal(t, sent(first), sent(second), note)
	require.True(t, again.Timestamp.Equal(delivery.Timestamp), "%s: %v became %v", note, delivery.Timestamp, again.Timestamp)
}

// sent is what Marshal promises to send of a message's metadata, independent of how it does it.
func sent(msg *message.Message) message.Metadata {
	metadata := lasting(msg)
	delete(metadata, "CC")
	delete(metadata, "BCC")
	for _, name := range []string{"Content-Type", "content_type", "contentType", "ContentType"} {
		if metadata[inboxamqp.ContentTypeKey] == "" {
			metadata[inboxamqp.ContentTypeKey] = metadata[name]
		}
	}
	return metadata
}

func randomText(random *rand.Rand) string {
	texts := []string{"", "a", "amqp_type", "x-death", "content-type", "Content-Type", "correlation_id", "\xff", "é", `"`, "_watermill_message_uuid", "inbox_outcome"}
	return texts[random.IntN(len(texts))]
}

func randomValue(random *rand.Rand, depth int) any {
	switch kind := random.IntN(11); {
	case kind == 0:
		return nil
	case kind == 1:
		return random.IntN(2) == 0
	case kind == 2:
		return int32(random.Uint32())
	case kind == 3:
		return random.NormFloat64()
	case kind == 4:
		return amqp091.Decimal{Scale: uint8(random.IntN(256)), Value: int32(random.Uint32())}
	case kind == 5:
		return time.Unix(random.Int64(), 0)
	case kind == 6:
		return []byte(randomText(random))
	case kind == 7 && depth > 0:
		return amqp091.Table{randomText(random): randomValue(random, depth-1), randomText(random): randomValue(random, depth-1)}
	case kind == 8 && depth > 0:
		return []any{randomValue(random, depth-1), randomValue(random, depth-1)}
	default:
		return randomText(random)
	}
}
