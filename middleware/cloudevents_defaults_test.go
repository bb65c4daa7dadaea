package middleware

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

func eventOf(payload string, pairs ...string) *message.Message {
	msg := message.NewMessage("", []byte(payload))
	for i := 0; i < len(pairs); i += 2 {
		msg.Metadata.Set(pairs[i], pairs[i+1])
	}
	return msg
}

func TestTheEventTypeIsThatOfTheCloudEventElseTheNameOfCQRS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason string
		msg    *message.Message
		want   string
	}{
		{"binary", eventOf("", "ce_type", "OrderPlaced"), "OrderPlaced"},
		{"structured", eventOf(`{"specversion":"1.0","id":"1","source":"/o","type":"OrderPlaced"}`), "OrderPlaced"},
		{"cqrs", eventOf("{}", "name", "orders.OrderPlaced"), "orders.OrderPlaced"},
		{"both: the event's own comes first", eventOf("", "ce_type", "OrderPlaced", "name", "other"), "OrderPlaced"},
		{"neither", eventOf("{}"), ""},
	} {
		eventType, err := eventTypeOf(c.msg)
		require.NoError(t, err, c.reason)
		require.Equal(t, c.want, eventType, c.reason)
	}
	_, err := eventTypeOf(eventOf("", "ce_type", "a", "ce-type", "b", "name", "c"))
	require.ErrorContains(t, err, "ce_type")
	require.NotErrorIs(t, err, ErrNoKey, "two types are not none")
}

func TestTheSourceIsThatOfTheCloudEvent(t *testing.T) {
	t.Parallel()
	source, err := sourceOf(eventOf("", "cloudEvents:source", "/orders"))
	require.NoError(t, err)
	require.Equal(t, "/orders", source)
	_, err = sourceOf(eventOf(""))
	require.ErrorIs(t, err, ErrNoKey)
}

func TestTheProducersTimeIsThatOfTheCloudEvent(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	for reason, msg := range map[string]*message.Message{
		"in UTC":           eventOf("", "ce_time", "2026-01-02T03:04:05.6Z"),
		"with an offset":   eventOf("", "ce-time", "2026-01-02T05:04:05.6+02:00"),
		"encoded for HTTP": eventOf("", "ce-time", "2026-01-02T05%3A04%3A05.6%2B02:00"),
		"structured":       eventOf(`{"specversion":"1.0","id":"1","source":"/o","type":"t","time":"2026-01-02T03:04:05.6Z"}`),
	} {
		occurredAt, err := occurredAtOf(msg)
		require.NoError(t, err, reason)
		require.True(t, want.Equal(occurredAt), "%s: %s", reason, occurredAt)
	}

	occurredAt, err := occurredAtOf(eventOf("{}"))
	require.NoError(t, err)
	require.Zero(t, occurredAt, "a message that does not say")

	for reason, text := range map[string]string{"no zone": "2026-01-02T03:04:05", "a Unix time": "1767323045", "words": "yesterday\n"} {
		_, err := occurredAtOf(eventOf("", "ce_time", text))
		require.ErrorContains(t, err, "RFC 3339", reason)
		require.NotErrorIs(t, err, ErrNoKey, reason)
		require.NotContains(t, err.Error(), "\n", reason)
	}
	_, err = occurredAtOf(eventOf("", "ce_time", "2026-01-02T03:04:05Z", "ce-time", "2027-01-02T03:04:05Z"))
	require.ErrorContains(t, err, "ce-time")
}
