package inboxamqp_test

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

func FuzzUnmarshal(f *testing.F) {
	f.Add("", "", "", uint8(0), int64(0), []byte(nil))
	f.Add("id", "x-death", "expired", uint8(20), int64(3), []byte("{}"))
	f.Add("id", "amqp_timestamp", "not a time", uint8(1), int64(math.MaxInt64), []byte{0})
	f.Add("\xff", "_watermill_message_uuid", "\xff\xfe", uint8(3), int64(math.MinInt64), []byte("\xff"))
	f.Add("id", "CC", "q", uint8(2), int64(-1), []byte("b"))
	f.Add("id", "content-type", "application/cloudevents+json", uint8(0), int64(253402300800), []byte(`{"specversion":"1.0"}`))

	f.Fuzz(func(t *testing.T, id, name, text string, depth uint8, number int64, body []byte) {
		if len(id) > 255 || len(name) > 255 {
			return // no short string of AMQP
		}
		value := nested(int(depth%64), any(text))
		delivery := amqp091.Delivery{
			MessageId: id,
			Headers: amqp091.Table{
				name: value,
				"all": []any{
					value, number, int8(number), int16(number), int32(number), byte(number), number < 0,
					math.Float64frombits(uint64(number)), math.Float32frombits(uint32(number)),
					amqp091.Decimal{Scale: byte(number), Value: int32(number)}, time.Unix(number, 0), body, nil,
					amqp091.Table{text: name},
				},
			},
			Timestamp: time.Unix(number, 0),
			Body:      body,
		}
		requireSurvives(t, delivery, "")

		if all := unmarshal(t, delivery).Metadata["all"]; name != "all" && !utf8.ValidString(all) {
			t.Fatalf("what was made of an array is no UTF-8: %q", all)
		}

		// Two headers that differ in one byte stay different.
		changed := strings.Replace(text, "\xff", "\ufffd", 1)
		if changed != text {
			if headerText(t, value) == headerText(t, nested(int(depth%64), any(changed))) {
				t.Fatalf("%q and %q became one", text, changed)
			}
		}
		if state := unmarshal(t, delivery).Metadata[inboxamqp.RedeliveredKey]; state != "false" {
			t.Fatalf("redelivered is %q", state)
		}
	})
}
