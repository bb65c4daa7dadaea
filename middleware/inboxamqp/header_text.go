package inboxamqp

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	// maxDepth is how many tables and arrays may be nested in a header before the rest is a digest.
	maxDepth = 16
	// maxText is the size in bytes above which the text that was made of a header is a digest.
	maxText = 64 << 10
)

// headerText is a header's value as metadata. It never fails. Strings stay as they are, byte for byte: whatever is done
// to the ones that are not UTF-8 could make two of them equal, or change again in the next round.
func headerText(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case nil:
		return "" // as text, null would be one key for every message whose producer has none
	}
	var text []byte
	switch value.(type) {
	case amqp091.Table, []any:
		text = appendJSON(nil, value, 0)
	default:
		text = appendScalar(nil, value)
	}
	if len(text) > maxText {
		return digest(text)
	}
	return string(text)
}

// appendJSON writes a value inside of a table or an array.
func appendJSON(out []byte, value any, depth int) []byte {
	if depth == maxDepth {
		switch value.(type) {
		case amqp091.Table, []any:
			// The digest is over all of it, so that what differs only below stays different.
			return appendString(out, digest(appendJSON(nil, value, depth+1)))
		}
	}
	switch v := value.(type) {
	case amqp091.Table:
		out = append(out, '{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendString(out, name)
			out = append(out, ':')
			out = appendJSON(out, v[name], depth+1)
		}
		return append(out, '}')
	case []any:
		out = append(out, '[')
		for i, element := range v {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendJSON(out, element, depth+1)
		}
		return append(out, ']')
	case string:
		return appendString(out, v)
	}
	if isJSONScalar(value) {
		return appendScalar(out, value)
	}
	return appendString(out, string(appendScalar(nil, value)))
}

// isJSONScalar tells whether the text of a scalar is JSON without quotes.
func isJSONScalar(value any) bool {
	switch v := value.(type) {
	case nil, bool, byte, int8, int16, int32, int64, int, amqp091.Decimal:
		return true
	case float32:
		return isFinite(float64(v))
	case float64:
		return isFinite(v)
	default:
		return false
	}
}

func isFinite(f float64) bool {
	return !math.IsNaN(f) && !math.IsInf(f, 0)
}

func appendScalar(out []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(out, "null"...)
	case []byte:
		return base64.StdEncoding.AppendEncode(out, v)
	case float32:
		return strconv.AppendFloat(out, float64(v), 'g', -1, 32)
	case float64:
		return strconv.AppendFloat(out, v, 'g', -1, 64)
	case amqp091.Decimal:
		return appendDecimal(out, v)
	case time.Time:
		return append(out, timeText(v)...)
	default:
		// bool, integers, and what a later amqp091-go may read.
		return fmt.Append(out, v)
	}
}

// appendDecimal keeps trailing zeros: 1.50 is not 1.5 for who sent it.
func appendDecimal(out []byte, d amqp091.Decimal) []byte {
	value := int64(d.Value)
	if value < 0 {
		out, value = append(out, '-'), -value
	}
	digits, scale := strconv.FormatInt(value, 10), int(d.Scale)
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	out = append(out, digits[:len(digits)-scale]...)
	if scale > 0 {
		out = append(out, '.')
		out = append(out, digits[len(digits)-scale:]...)
	}
	return out
}

func timeText(t time.Time) string {
	t = t.UTC()
	if t.Year() < 0 || t.Year() > 9999 {
		return strconv.FormatInt(t.Unix(), 10)
	}
	return t.Format(time.RFC3339Nano)
}

func parseTime(text string) (t time.Time, ok bool) {
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Unix(seconds, 0), true
	}
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil
}

// appendString writes a JSON string. A byte that is not UTF-8 is written as the lone surrogate U+DC80 to U+DCFF, as
// Python's surrogateescape does: no UTF-8 text contains one, so two different strings stay different.
func appendString(out []byte, text string) []byte {
	out = append(out, '"')
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\udc%02x`, text[0])
		case r == '"' || r == '\\':
			out = append(out, '\\', byte(r))
		case r < ' ':
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	return append(out, '"')
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}
