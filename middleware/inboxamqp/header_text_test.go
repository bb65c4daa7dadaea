package inboxamqp_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

func unmarshal(t testing.TB, delivery amqp091.Delivery) *message.Message {
	t.Helper()
	msg, err := inboxamqp.Marshaler{}.Unmarshal(delivery)
	require.NoError(t, err)
	return msg
}

func headerText(t testing.TB, value any) string {
	t.Helper()
	msg := unmarshal(t, amqp091.Delivery{Headers: amqp091.Table{"h": value}})
	text, ok := msg.Metadata["h"]
	require.True(t, ok, "the header is missing")
	return text
}

func TestEveryHeaderTypeHasItsText(t *testing.T) {
	t.Parallel()
	noon := time.Date(2024, 2, 29, 12, 0, 0, 0, time.FixedZone("", 3600))
	for _, test := range []struct {
		value  any
		text   string
		reason string
	}{
		{"", "", "an empty string is not a missing header"},
		{"plain", "plain", "strings stay as they are"},
		{`{"a":1}`, `{"a":1}`, "also if they look like JSON"},
		{"\xff\x00", "\xff\x00", "also if they are no text"},
		{true, "true", "JSON"},
		{false, "false", "JSON"},
		{byte(255), "255", "an octet is a number here, not a character"},
		{int8(-128), "-128", "smallest"},
		{int16(-32768), "-32768", "smallest"},
		{int32(math.MinInt32), "-2147483648", "smallest"},
		{int64(math.MaxInt64), "9223372036854775807", "larger than what a float64 holds exactly"},
		{int(7), "7", "tests and in-process brokers use int"},
		{float32(0.1), "0.1", "shortest text that reads back as the same float32"},
		{0.1, "0.1", "shortest text that reads back as the same float64"},
		{1e300, "1e+300", "as JSON"},
		{math.NaN(), "NaN", "not JSON, and yet no error"},
		{math.Inf(-1), "-Inf", "not JSON, and yet no error"},
		{amqp091.Decimal{Scale: 2, Value: 150}, "1.50", "the scale is kept"},
		{amqp091.Decimal{Scale: 0, Value: -7}, "-7", "no point without a scale"},
		{amqp091.Decimal{Scale: 3, Value: -7}, "-0.007", "zeros are filled in"},
		{amqp091.Decimal{Scale: 1, Value: math.MinInt32}, "-214748364.8", "has no positive counterpart in 32 bits"},
		{noon, "2024-02-29T11:00:00Z", "UTC"},
		{time.Unix(1<<50, 0), "1125899906842624", "RFC 3339 ends with year 9999"},
		{nil, "", "null would be a usable key, the same for all messages that have none"},
		{[]byte("\x00\xff"), "AP8=", "bytes are no text"},
		{amqp091.Table{}, "{}", "empty table"},
		{[]any{}, "[]", "empty array"},
		{
			amqp091.Table{"b": int32(1), "a": []any{"x", nil, true, 1.5}},
			`{"a":["x",null,true,1.5],"b":1}`, "members are sorted",
		},
		{
			[]any{noon, []byte("a"), amqp091.Decimal{Scale: 1, Value: 5}, math.NaN(), float32(math.Inf(1))},
			`["2024-02-29T11:00:00Z","YQ==",0.5,"NaN","+Inf"]`, "what JSON has no literal for is a string",
		},
		{[]any{"\"\\\n\x7f</é\u2028"}, "[\"\\\"\\\\\\u000a\x7f</é\u2028\"]", "only what JSON demands is escaped"},
		{[]any{"a\xffb"}, `["a\udcffb"]`, "a byte that is no UTF-8 is a lone surrogate"},
		{[]any{"\ufffd"}, "[\"\ufffd\"]", "a genuine replacement character is not one"},
		{amqp091.Table{"\xfe": ""}, `{"\udcfe":""}`, "also in names"},
		{struct{ A int }{1}, "{1}", "a type that the client may read one day does not fail either"},
		{[]any{uint64(1)}, `["1"]`, "nor does it inside of an array"},
	} {
		assert.Equal(t, test.text, headerText(t, test.value), "%T %v: %s", test.value, test.value, test.reason)
	}
}

func TestNestedHeadersAreJSON(t *testing.T) {
	t.Parallel()
	for _, value := range []any{
		nested(30, "x"),
		amqp091.Table{"a\xff": "\xff", "\x00": "\x00\x1f\"\\"},
		[]any{math.NaN(), 1e-300, float32(1e30), int64(math.MinInt64), amqp091.Decimal{Scale: 255, Value: -1}},
	} {
		text := headerText(t, value)
		assert.True(t, json.Valid([]byte(text)), "not JSON: %s", text)
	}
}

// nested is depth tables and arrays around a value.
func nested(depth int, value any) any {
	for i := range depth {
		if i%2 == 0 {
			value = amqp091.Table{"t": value}
		} else {
			value = []any{value}
		}
	}
	return value
}

func TestDepthIsBoundedAndWhatIsCutStaysDifferent(t *testing.T) {
	t.Parallel()
	assert.NotContains(t, headerText(t, nested(16, "x")), "sha256:", "16 is allowed")
	assert.Contains(t, headerText(t, nested(17, "x")), "sha256:")

	seen := map[string]int{}
	for depth := 1; depth < 40; depth++ {
		text := headerText(t, nested(depth, "x"))
		assert.LessOrEqual(t, strings.Count(text, "{")+strings.Count(text, "["), 16, "depth %d", depth)
		assert.NotContains(t, seen, text, "depth %d looks like another", depth)
		seen[text] = depth
	}
	assert.NotEqual(t, headerText(t, nested(30, "x")), headerText(t, nested(30, "y")), "differs only below the cut")
}

func TestSizeIsBoundedAndWhatIsCutStaysDifferent(t *testing.T) {
	t.Parallel()
	array := func(size int, last string) any {
		return []any{strings.Repeat("a", size-4-len(last)) + last}
	}
	assert.Len(t, headerText(t, array(64<<10, "x")), 64<<10, "64 KiB is allowed")
	cut := headerText(t, array(64<<10+1, "x"))
	assert.Regexp(t, "^sha256:[0-9a-f]{64}$", cut)
	assert.NotEqual(t, cut, headerText(t, array(64<<10+1, "y")))
	assert.Regexp(t, "^sha256:[0-9a-f]{64}$", headerText(t, make([]byte, 50<<10)), "bytes grow as base64")
}

func TestALongStringIsKeptWhole(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("s", 100<<10)
	assert.Equal(t, long, headerText(t, long))
}
