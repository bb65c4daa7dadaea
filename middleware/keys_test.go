package middleware_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/middleware/inboxtest"
)

func payload(text string) *message.Message {
	return message.NewMessage("uuid", []byte(text))
}

func metadata(pairs ...string) *message.Message {
	msg := message.NewMessage("uuid", nil)
	for i := 0; i < len(pairs); i += 2 {
		msg.Metadata.Set(pairs[i], pairs[i+1])
	}
	return msg
}

func validate(extractor middleware.KeyExtractor) error {
	if validator, ok := extractor.(interface{ Validate() error }); ok {
		return validator.Validate()
	}
	return nil
}

func TestKeyFromJSONReadsTheScalarAtThePointer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ reason, pointer, payload, want string }{
		{"a string", "/id", `{"id":"o-1"}`, "o-1"},
		{"nested", "/order/id", `{"order":{"x":[1,{}],"id":"o-1"},"id":"other"}`, "o-1"},
		{"white space and order do not matter", "/order/id", " {\n\"id\":\"other\",\"order\" : { \"id\" : \"o-1\" , \"x\":2} } ", "o-1"},
		{"an array's element", "/lines/1/sku", `{"lines":[{"sku":"a"},{"sku":"b"},{"sku":"c"}]}`, "b"},
		{"an integer", "/id", `{"id":9007199254740993}`, "9007199254740993"},
		{"a negative integer", "/id", `{"id":-7}`, "-7"},
		{"zero", "/id", `{"id":0}`, "0"},
		{"a truth value", "/urgent", `{"urgent":true}`, "true"},
		{"escapes in the payload", "/id", `{"id":"\u006f-1"}`, "o-1"},
		{"an escaped name in the payload", "/id", `{"\u0069d":"o-1"}`, "o-1"},
		{"a slash and a tilde in the name", "/a~1b~0c", `{"a/b~c":"o-1"}`, "o-1"},
		{"an escaped tilde before a one", "/a~01", `{"a/":"x","a~1":"o-1"}`, "o-1"},
		{"an empty name", "/", `{"":"o-1"}`, "o-1"},
		{"a dot is no path", "/a.b", `{"a":{"b":"x"},"a.b":"o-1"}`, "o-1"},
		{"a number as a member's name", "/0", `{"0":"o-1"}`, "o-1"},
		{"a hyphen as a member's name", "/-", `{"-":"o-1"}`, "o-1"},
		{"digits with a leading zero as a member's name", "/00", `{"00":"o-1"}`, "o-1"},
		{"a string that ends in an escaped backslash before it", "/id", `{"x":"\\","id":"o-1"}`, "o-1"},
		{"brackets and quotes in a string before it", "/id", `{"x":["]}\"{[",{"y":"\""}],"id":"o-1"}`, "o-1"},
		{"an element behind mixed ones", "/4", "[ 1 , [2,[3]] ,\t{\"a\":[]} , null ,\"o-1\"]", "o-1"},
		{"the last element, white space before the bracket", "/1", "[true,false\n]", "false"},
		{"a number at the end", "/a/0", `{"a":[7]}`, "7"},
		{"white space in UTF-8 is no end", "/id", "{\"id\":\"o\u00a0\"}", "o\u00a0"},
		{"another member twice", "/id", `{"x":1,"x":2,"id":"o-1"}`, "o-1"},
		{"the member twice elsewhere", "/a/id", `{"id":1,"a":{"id":"o-1"},"b":{"id":2}}`, "o-1"},
		{"a surrogate pair", "/id", `{"id":"\ud83d\ude00"}`, "😀"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			extractor := middleware.KeyFromJSON(c.pointer)
			require.NoError(t, validate(extractor))
			key, err := extractor.ExtractKey(payload(c.payload))
			require.NoError(t, err)
			require.Equal(t, c.want, key)
		})
	}
}

func TestKeyFromJSONTellsWhatIsNotThereFromWhatCannotBeTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason, pointer, payload string
		noKey                    bool
		says                     string
	}{
		{"missing", "/id", `{}`, true, "missing"},
		{"missing on the way", "/order/id", `{"id":"o-1"}`, true, "missing"},
		{"missing on the way, in an array", "/1/id", `[{"id":"o-1"}]`, true, "missing"},
		{"null on the way", "/order/id", `{"order":null}`, true, "missing"},
		{"null", "/id", `{"id":null}`, true, "null"},
		{"empty", "/id", `{"id":""}`, true, "empty"},
		{"missing below a scalar", "/id/x", `{"id":"o-1"}`, true, "missing"},
		{"index behind the end", "/1", `["a"]`, true, "missing"},
		{"an index too large for an integer", "/99999999999999999999", `["a"]`, true, "missing"},
		{"an index with a sign", "/+0", `["a"]`, true, "missing"},
		{"a negative index", "/-1", `["a"]`, true, "missing"},
		{"an element of an empty array", "/0", `[ ]`, true, "missing"},
		{"a member of an empty object", "/id", `{ }`, true, "missing"},
		{"the empty name in an array", "/", `["a"]`, true, "missing"},
		{"index with a leading zero", "/00", `["a"]`, false, "RFC 6901"},
		{"the element after the last", "/-", `["a"]`, false, "RFC 6901"},
		{"the element after the last, deeper", "/a/-/id", `{"a":[{"id":"a"}]}`, false, "RFC 6901"},
		{"a name in an array", "/id", `[{"id":"o-1"}]`, true, "missing"},
		{"case matters", "/ID", `{"id":"o-1"}`, true, "missing"},
		{"an object", "/id", `{"id":{}}`, false, "object"},
		{"an array", "/id", `{"id":["o-1"]}`, false, "array"},
		{"a fraction", "/id", `{"id":1.0}`, false, "integer"},
		{"an exponent", "/id", `{"id":1e3}`, false, "integer"},
		{"minus zero", "/id", `{"id":-0}`, false, "integer"},
		{"a member twice", "/id", `{"id":"a","id":"a"}`, false, "twice"},
		{"a member twice, once escaped", "/id", `{"id":"a","\u0069d":"b"}`, false, "twice"},
		{"a member on the way twice", "/o/id", `{"o":{"id":"a"},"o":{}}`, false, "twice"},
		{"not JSON", "/id", `id=o-1`, false, "not JSON"},
		{"empty payload", "/id", ``, false, "not JSON"},
		{"cut off", "/id", `{"id":"o-1"`, false, "not JSON"},
		{"trailing data", "/id", `{"id":"o-1"} {}`, false, "not JSON"},
		{"a byte order mark", "/id", "\ufeff{\"id\":\"o-1\"}", false, "not JSON"},
		{"invalid UTF-8 in the key", "/id", "{\"id\":\"o-\xff\"}", false, "not JSON"},
		{"invalid UTF-8 elsewhere", "/id", "{\"id\":\"o-1\",\"x\":\"\xff\"}", false, "not JSON"},
		{"a lone surrogate", "/id", `{"id":"o-\ud83d"}`, false, "replaced"},
		{"a replacement character", "/id", `{"id":"o-\ufffd"}`, false, "replaced"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			_, err := middleware.KeyFromJSON(c.pointer).ExtractKey(payload(c.payload))
			require.ErrorContains(t, err, c.says)
			require.Equal(t, c.noKey, errors.Is(err, middleware.ErrNoKey))
			require.NotContains(t, err.Error(), "o-1", "the error quotes the payload")
		})
	}
}

func TestKeyFromJSONRefusesAPointerThatNamesNothing(t *testing.T) {
	t.Parallel()
	for reason, pointer := range map[string]string{
		"whole document":    "",
		"no slash":          "id",
		"a path with dots":  "order.id",
		"unfinished escape": "/a~",
		"unknown escape":    "/a~2",
		"invalid UTF-8":     "/\xff",
		// A broken name in the payload is read as this one.
		"a replaced character": "/\ufffd",
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			extractor := middleware.KeyFromJSON(pointer)
			require.Error(t, validate(extractor))
			for _, text := range []string{`{"id":"o-1"}`, `"o-1"`} {
				_, err := extractor.ExtractKey(payload(text))
				require.Error(t, err, text)
				require.NotErrorIs(t, err, middleware.ErrNoKey, text)
			}
		})
	}
}

func TestKeyFromJSONSurvivesDeepNesting(t *testing.T) {
	t.Parallel()
	for reason, text := range map[string]string{
		"brackets":         strings.Repeat("[", 4<<20),
		"members":          strings.Repeat(`{"id":`, 1<<17),
		"closed, but deep": strings.Repeat("[", 1<<17) + strings.Repeat("]", 1<<17),
		"below a sibling":  `{"x":` + strings.Repeat("[", 1<<17) + strings.Repeat("]", 1<<17) + `,"id":"a"}`,
		"a key of 2 MB":    `{"other":"` + strings.Repeat("k", 2<<20) + `"}`,
		"many members":     "{" + strings.Repeat(`"k":1,`, 1<<17) + `"k":1}`,
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			_, err := middleware.KeyFromJSON("/id").ExtractKey(payload(text))
			require.Error(t, err)
		})
	}
}

func TestJoinedKeysCanBeToldApart(t *testing.T) {
	t.Parallel()
	join := func(parts ...string) string {
		extractors := make([]middleware.KeyExtractor, len(parts))
		for i, part := range parts {
			extractors[i] = middleware.ConstantKey(part)
		}
		key, err := middleware.JoinKeys(extractors...).ExtractKey(payload(""))
		require.NoError(t, err)
		return key
	}
	require.Equal(t, "3:a|b+1:c", join("a|b", "c"))
	require.NotEqual(t, join("a", "b:c"), join("a:b", "c"))
	require.NotEqual(t, join("a+1:b"), join("a", "b"))

	seen := map[string][]string{}
	letters := []string{"a", ":", "+", "1", "0", "|", "\x00", "é"}
	for range 50_000 {
		var parts []string
		for range 1 + rand.IntN(3) {
			var part string
			for range 1 + rand.IntN(4) {
				part += letters[rand.IntN(len(letters))]
			}
			parts = append(parts, part)
		}
		key := join(parts...)
		if other, ok := seen[key]; ok {
			require.Equal(t, other, parts, "both are %q", key)
		}
		seen[key] = parts
	}
}

func TestJoinedKeysNeedEveryPart(t *testing.T) {
	t.Parallel()
	extractor := middleware.JoinKeys(middleware.ConstantKey("create"), middleware.KeyFromJSON("/opportunity"), middleware.KeyFromJSON("/meeting"))
	empty := middleware.KeyFunc(func(*message.Message) (string, error) { return "", nil })
	_, err := middleware.JoinKeys(middleware.ConstantKey("a"), empty).ExtractKey(payload(""))
	require.ErrorIs(t, err, middleware.ErrNoKey, "an extractor of the user's own may forget to say so")

	_, err = extractor.ExtractKey(payload(`{"opportunity":{},"meeting":"m"}`))
	require.ErrorContains(t, err, "part 2")
	require.NotErrorIs(t, err, middleware.ErrNoKey)

	for reason, text := range map[string]string{
		"missing": `{"opportunity":"o"}`,
		"null":    `{"opportunity":"o","meeting":null}`,
		"empty":   `{"opportunity":"o","meeting":""}`,
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			_, err := extractor.ExtractKey(payload(text))
			require.ErrorIs(t, err, middleware.ErrNoKey)
			require.ErrorContains(t, err, "part 3")
		})
	}
}

func TestFirstKeyMovesOnOnlyFromWhatIsNotThere(t *testing.T) {
	t.Parallel()
	extractor := middleware.FirstKey(middleware.KeyFromMetadata("order_id"), middleware.KeyFromJSON("/id"), middleware.KeyFromUUID)

	key, err := extractor.ExtractKey(metadata("order_id", "o-1"))
	require.NoError(t, err)
	require.Equal(t, "o-1", key)

	key, err = extractor.ExtractKey(payload(`{}`))
	require.NoError(t, err)
	require.Equal(t, "uuid", key)

	key, err = extractor.ExtractKey(payload(`{"id":`))
	require.Error(t, err, "a damaged payload must not get another identity")
	require.NotErrorIs(t, err, middleware.ErrNoKey)
	require.Empty(t, key)
}

func TestFirstKeyWithoutAKeySaysEachReasonOnOneLine(t *testing.T) {
	t.Parallel()
	empty := middleware.KeyFunc(func(*message.Message) (string, error) { return "", nil })
	key, err := middleware.FirstKey(middleware.KeyFromMetadata("order_id"), empty, middleware.KeyFromJSON("/id")).ExtractKey(payload(`{"id":null}`))
	require.Empty(t, key)
	require.ErrorIs(t, err, middleware.ErrNoKey)
	require.ErrorContains(t, err, `metadata "order_id" is missing`)
	require.ErrorContains(t, err, "it is empty")
	require.ErrorContains(t, err, `"/id"`)
	require.NotContains(t, err.Error(), "\n", "a broker may refuse metadata with a line break")
}

func TestAnExtractorOfExtractorsKeepsItsOwnList(t *testing.T) {
	t.Parallel()
	for reason, combine := range map[string]func(...middleware.KeyExtractor) middleware.KeyExtractor{
		"JoinKeys": middleware.JoinKeys,
		"FirstKey": middleware.FirstKey,
	} {
		list := []middleware.KeyExtractor{middleware.ConstantKey("a")}
		extractor := combine(list...)
		before, err := extractor.ExtractKey(payload(""))
		require.NoError(t, err, reason)
		list[0] = middleware.ConstantKey("b")
		after, err := extractor.ExtractKey(payload(""))
		require.NoError(t, err, reason)
		require.Equal(t, before, after, reason)
	}
}

func TestNoExtractorsHaveNoKeyAndAreNotMerelyWithout(t *testing.T) {
	t.Parallel()
	for reason, extractor := range map[string]middleware.KeyExtractor{"JoinKeys": middleware.JoinKeys(), "FirstKey": middleware.FirstKey()} {
		_, err := extractor.ExtractKey(payload(""))
		require.ErrorContains(t, err, reason)
		require.NotErrorIs(t, err, middleware.ErrNoKey, reason)
	}
}

func TestAMessageWithoutTheMetadataOrUUIDHasNoKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason    string
		extractor middleware.KeyExtractor
		msg       *message.Message
		says      string
	}{
		{"no UUID", middleware.KeyFromUUID, message.NewMessage("", nil), "UUID"},
		{"missing metadata", middleware.KeyFromMetadata("order_id"), metadata("Order_ID", "o-1"), "missing"},
		{"empty metadata", middleware.KeyFromMetadata("order_id"), metadata("order_id", ""), "empty"},
		{"no metadata at all", middleware.KeyFromMetadataUnchecked("order_id"), &message.Message{}, "missing"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			_, err := c.extractor.ExtractKey(c.msg)
			require.ErrorIs(t, err, middleware.ErrNoKey)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// buildWith builds an inbox whose key is extractor.
func buildWith(change func(*middleware.HandlerConfig)) error {
	var config middleware.HandlerConfig
	change(&config)
	_, err := middleware.NewInbox(middleware.InboxConfig{
		Store:    inboxtest.NewMemory(0),
		Handlers: map[string]middleware.HandlerConfig{"billing": config},
	})
	return err
}

func TestAKeyThatCannotIdentifyAMessageIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	for name, reason := range map[string]string{
		"correlation_id": "share", "CorrelationID": "share", "correlation-id": "share", "causation_id": "share", "traceparent": "share",
		"x-delivery-count": "each delivery", "attempt": "each delivery", "Retry-Count": "each delivery", "redelivered": "each delivery",
		"x-death": "each delivery", "amqp_redelivered": "each delivery", "received_at": "each delivery",
		"ce-time": "time", "timestamp": "time", "cloudEvents:time": "time",
		"name": "describes", "ce_type": "describes", "content-type": "describes",
		"reason_poisoned": "poisoning", "inbox_message_key": "inbox sets",
	} {
		for _, extractor := range []middleware.KeyExtractor{
			middleware.KeyFromMetadata(name),
			middleware.JoinKeys(middleware.ConstantKey("a"), middleware.KeyFromMetadata(name)),
			middleware.FirstKey(middleware.KeyFromUUID, middleware.KeyFromMetadata(name)),
		} {
			for _, err := range []error{
				buildWith(func(c *middleware.HandlerConfig) { c.Key = extractor }),
				buildWith(func(c *middleware.HandlerConfig) { c.BusinessKey = extractor }),
			} {
				require.ErrorContains(t, err, reason, name)
				require.ErrorContains(t, err, "KeyFromMetadataUnchecked", name)
			}
		}
		require.NoError(t, buildWith(func(c *middleware.HandlerConfig) { c.Key = middleware.KeyFromMetadataUnchecked(name) }), name)
		require.NoError(t, buildWith(func(c *middleware.HandlerConfig) { c.EventType = middleware.KeyFromMetadata(name) }), name)
		require.NoError(t, buildWith(func(c *middleware.HandlerConfig) { c.TenantID = middleware.KeyFromMetadata(name) }), name)
	}
	for _, name := range []string{"order_id", "message_id", "ce-id", "Idempotency-Key", "event_id", "x-request-id", "payment"} {
		require.NoError(t, buildWith(func(c *middleware.HandlerConfig) { c.Key = middleware.KeyFromMetadata(name) }), name)
	}
}

func TestAJoinedKeyNeedsOnePartThatIdentifiesAndNoneThatChanges(t *testing.T) {
	t.Parallel()
	tenantAndOrder := middleware.JoinKeys(middleware.KeyFromMetadata("tenant"), middleware.KeyFromMetadata("order_id"))
	require.NoError(t, buildWith(func(c *middleware.HandlerConfig) { c.Key = tenantAndOrder }))

	tenantAndType := middleware.JoinKeys(middleware.KeyFromMetadata("tenant"), middleware.KeyFromMetadata("type"))
	require.Error(t, buildWith(func(c *middleware.HandlerConfig) { c.Key = tenantAndType }))

	orderAndAttempt := middleware.JoinKeys(middleware.KeyFromMetadata("order_id"), middleware.KeyFromMetadata("attempt"))
	require.ErrorContains(t, buildWith(func(c *middleware.HandlerConfig) { c.Key = orderAndAttempt }), "each delivery")

	require.ErrorContains(t, buildWith(func(c *middleware.HandlerConfig) { c.Key = middleware.ConstantKey("orders") }), "every message")
}

func TestAnExtractorThatIsPutTogetherWrongIsRefused(t *testing.T) {
	t.Parallel()
	for reason, extractor := range map[string]middleware.KeyExtractor{
		"no name":           middleware.KeyFromMetadata(""),
		"no unchecked name": middleware.KeyFromMetadataUnchecked(""),
		"empty constant":    middleware.ConstantKey(""),
		"constant with NUL": middleware.ConstantKey("a\x00"),
		"constant no UTF-8": middleware.ConstantKey("a\xff"),
		"nil function":      middleware.KeyFunc(nil),
		"joined nil func":   middleware.JoinKeys(middleware.KeyFromUUID, middleware.KeyFunc(nil)),
		"nothing to join":   middleware.JoinKeys(),
		"nothing to choose": middleware.FirstKey(),
		"nil part":          middleware.JoinKeys(middleware.KeyFromUUID, nil),
		"nil choice":        middleware.FirstKey(nil),
		"deep inside":       middleware.FirstKey(middleware.KeyFromUUID, middleware.JoinKeys(middleware.KeyFromJSON("id"))),
	} {
		require.Error(t, validate(extractor), reason)
		require.Error(t, buildWith(func(c *middleware.HandlerConfig) { c.Key = extractor }), reason)
	}
}

func TestEveryProblemOfNestedExtractorsIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	err := validate(middleware.FirstKey(nil, middleware.JoinKeys(middleware.KeyFromJSON("order.id"), middleware.ConstantKey(""))))
	require.ErrorContains(t, err, "extractor 1 of FirstKey is nil")
	require.ErrorContains(t, err, "order.id")
	require.ErrorContains(t, err, "ConstantKey")
}

// FuzzJoinKeys claims of every two parts: they can be told again from the joined key, and no other parts have it.
func FuzzJoinKeys(f *testing.F) {
	f.Add("a|b", "c")
	f.Add("a", "b:c")
	f.Add("a+1:b", "1")
	f.Add("10:", "\x00\xff")
	f.Fuzz(func(t *testing.T, first, second string) {
		extractor := middleware.JoinKeys(middleware.ConstantKey(first), middleware.ConstantKey(second))
		key, err := extractor.ExtractKey(payload(""))
		if first == "" || second == "" {
			require.ErrorIs(t, err, middleware.ErrNoKey)
			return
		}
		require.NoError(t, err)
		require.Equal(t, []string{first, second}, split(t, key))

		nested, err := middleware.JoinKeys(extractor, middleware.ConstantKey(first)).ExtractKey(payload(""))
		require.NoError(t, err)
		require.Equal(t, []string{key, first}, split(t, nested))
	})
}

// split tells the parts of a joined key again, by the documented form alone.
func split(t *testing.T, key string) []string {
	t.Helper()
	var parts []string
	for {
		digits, rest, found := strings.Cut(key, ":")
		require.True(t, found)
		length, err := strconv.Atoi(digits)
		require.NoError(t, err)
		parts = append(parts, rest[:length])
		if rest = rest[length:]; rest == "" {
			return parts
		}
		require.Equal(t, "+", rest[:1])
		key = rest[1:]
	}
}

func ExampleJoinKeys() {
	extractor := middleware.JoinKeys(
		middleware.ConstantKey("create_followup"),
		middleware.KeyFromJSON("/opportunity"),
		middleware.KeyFromJSON("/meeting"),
	)
	key, err := extractor.ExtractKey(message.NewMessage("1", []byte(`{"meeting": "m-7", "opportunity": "o-3"}`)))
	fmt.Println(key, err)
	// Output: 15:create_followup+3:o-3+3:m-7 <nil>
}

func ExampleFirstKey() {
	extractor := middleware.FirstKey(middleware.KeyFromMetadata("order_id"), middleware.KeyFromUUID)
	key, err := extractor.ExtractKey(message.NewMessage("1", nil))
	fmt.Println(key, err)
	// Output: 1 <nil>
}

func ExampleKeyFromJSON() {
	key, err := middleware.KeyFromJSON("/order/id").ExtractKey(message.NewMessage("1", []byte(`{"order": {"id": 42}}`)))
	fmt.Println(key, err)
	// Output: 42 <nil>
}
