package hashing_test

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

var _ wmmiddleware.MessageHasher = (*hashing.Hasher)(nil).Hash

var secret = []byte("0123456789abcdef0123456789abcdef")

func TestStoredTextsDoNotChange(t *testing.T) {
	t.Parallel()
	event := message.NewMessage("1", []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"b":1.0,"a":"é"}}`))
	order := message.NewMessage("1", []byte(`{"total":9007199254740993,"lines":[{"sku":"a","ts":1}],"note":"\u00e9/\u2028"}`))
	order.Metadata.Set("name", "OrderPlaced")
	upper := func(msg *message.Message) ([]byte, error) { return []byte(strings.ToUpper(string(msg.Payload))), nil }

	var golden strings.Builder
	for _, c := range []struct {
		name    string
		options []hashing.Option
		msg     *message.Message
	}{
		{"json", nil, order},
		{"bytes", nil, message.NewMessage("1", []byte("not json"))},
		{"empty", nil, message.NewMessage("1", nil)},
		{"exclude", []hashing.Option{hashing.Exclude("/lines/*/ts", "/note")}, order},
		{"metadata", []hashing.Option{hashing.Metadata("name", "absent")}, order},
		{"float64", []hashing.Option{hashing.Numbers(hashing.Float64)}, order},
		{"keyed", []hashing.Option{hashing.Keyed("k1", secret)}, order},
		{"cloudevent", []hashing.Option{hashing.CloudEvents("time")}, event},
		{"content", []hashing.Option{hashing.Content("upper-1", upper)}, order},
	} {
		hash, err := newHasher(t, c.options...).Hash(c.msg)
		require.NoError(t, err)
		require.LessOrEqual(t, len(hash), 100)
		golden.WriteString(c.name + " " + hash + "\n")
	}
	want, err := os.ReadFile("testdata/stored.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), golden.String(), "stored hashes would become incomparable, or worse; if that is meant, raise the revision")
}

func TestTheLongestStoredTextHasAtMost100Characters(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t, hashing.Keyed(strings.Repeat("k", 16), secret),
		hashing.Content(strings.Repeat("c", 12), func(*message.Message) ([]byte, error) { return nil, nil }))
	require.LessOrEqual(t, len(hashOf(t, hasher, nil)), 100)
}

func TestAKeyChangesTheHashAndNotTheScheme(t *testing.T) {
	t.Parallel()
	payload := []byte(`{"user":7}`)
	plain := strings.Split(hashOf(t, newHasher(t), payload), ":")
	first := strings.Split(hashOf(t, newHasher(t, hashing.Keyed("k1", secret)), payload), ":")
	second := strings.Split(hashOf(t, newHasher(t, hashing.Keyed("k1", []byte(strings.Repeat("x", 32)))), payload), ":")
	require.Equal(t, plain[3], first[3])
	require.NotEqual(t, plain[4], first[4])
	require.NotEqual(t, first[4], second[4])
	require.Equal(t, "hmac-sha256.k1", first[2])
}

func TestMistakesInOptionsAreRefusedAllAtOnce(t *testing.T) {
	t.Parallel()
	content := func(*message.Message) ([]byte, error) { return nil, nil }
	for problem, options := range map[string][]hashing.Option{
		"begin with a slash":         {hashing.Exclude("a.b")},
		"whole payload":              {hashing.Exclude("")},
		"whole token":                {hashing.Exclude("/a*")},
		"~ at the end":               {hashing.Exclude("/a~")},
		"~3":                         {hashing.Exclude("/a~3")},
		"UTF-8":                      {hashing.Exclude("/\xff")},
		"metadata name":              {hashing.Metadata("")},
		"number mode":                {hashing.Numbers(7)},
		"attribute":                  {hashing.CloudEvents("ce-id")},
		"counts with the data":       {hashing.CloudEvents("datacontenttype")},
		"content name":               {hashing.Content("j", content)},
		"no function":                {hashing.Content("pb", nil)},
		"given twice":                {hashing.Content("pb", content), hashing.Content("pb2", content)},
		"Exclude has no effect":      {hashing.Content("pb", content), hashing.Exclude("/a")},
		"exclude each other":         {hashing.Content("pb", content), hashing.CloudEvents()},
		"Strict and Numbers have no": {hashing.Content("pb", content), hashing.Strict()},
		"fewer than 32":              {hashing.Keyed("k", secret[:31])},
		"key id":                     {hashing.Keyed("a:b", secret)},
		"two keys":                   {hashing.Keyed("a", secret), hashing.Keyed("b", secret)},
	} {
		t.Run(problem, func(t *testing.T) {
			t.Parallel()
			_, err := hashing.New(append(options, hashing.Exclude("other"))...)
			require.ErrorContains(t, err, problem)
			require.ErrorContains(t, err, `"other"`)
			require.NotContains(t, err.Error(), string(secret[:8]))
		})
	}
}

func TestAnErrorNamesOffsetAndReasonAndNoPayload(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t, hashing.Strict())
	for payload, want := range map[string]hashing.NotStrictJSONError{
		`{"secret":1,"secret":2}`:  {Offset: 12, Reason: "duplicate member name"},
		`{"secret":tru}`:           {Offset: 10, Reason: "not a JSON value"},
		`["secret\u12"]`:           {Offset: 8, Reason: "invalid escape, or a lone surrogate, in a string"},
		`[1e9999999999999999]`:     {Offset: 1, Reason: "exponent of a number beyond 999,999,999,999,999"},
		"\ufeff{}":                 {Offset: 0, Reason: "byte order mark"},
		strings.Repeat("[", 11000): {Offset: 10000, Reason: "deeper than 10,000 levels"},
	} {
		_, err := hasher.Hash(message.NewMessage("", []byte(payload)))
		var notStrict *hashing.NotStrictJSONError
		require.ErrorAs(t, err, &notStrict)
		require.Equal(t, want, *notStrict)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestContentHashesWhatItsFunctionMakes(t *testing.T) {
	t.Parallel()
	broken := errors.New("unknown fields")
	hasher := newHasher(t, hashing.Content("lower", func(msg *message.Message) ([]byte, error) {
		if len(msg.Payload) == 0 {
			return nil, broken
		}
		return []byte(strings.ToLower(string(msg.Payload))), nil
	}))
	require.Equal(t, hashOf(t, hasher, []byte("A")), hashOf(t, hasher, []byte("a")))
	require.NotEqual(t, hashOf(t, hasher, []byte("A")), hashOf(t, hasher, []byte("b")))
	_, err := hasher.Hash(message.NewMessage("", nil))
	require.ErrorIs(t, err, broken)
}

func TestHashKeepsAndChangesNothingAndIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t, hashing.Exclude("/b/*/x"), hashing.Metadata("m"))
	payloads := []string{`{"b":[{"x":1}],"a":2}`, `{"z":{"y":1,"x":2},"a":[{"c":1,"b":2}]}`, `not json`, ``, `{"\u0062":[],"\"":1,"a":2}`}
	want := make([]string, len(payloads))
	for i, payload := range payloads {
		want[i] = hashOf(t, hasher, []byte(payload))
	}
	var all sync.WaitGroup
	for worker := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range 2000 {
				at := (i + worker) % len(payloads)
				payload := []byte(payloads[at])
				hash, err := hasher.Hash(message.NewMessage("", payload))
				if err != nil || hash != want[at] || string(payload) != payloads[at] {
					t.Errorf("hash %q (%v) of %q, want %q", hash, err, payload, want[at])
					return
				}
				clear(payload)
			}
		}()
	}
	all.Wait()
}

func TestMembersOutOfOrderOnEveryLevelComeOutInOrder(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t)
	text, err := hasher.Explain(message.NewMessage("", []byte(`{"c":{"b":[{"z":1,"y":{"d":{},"c":[]}}],"a":{"k":{"q":1,"p":2}}},"b":{"x":1},"a":{"n":1,"m":{"s":1,"r":2}}}`)))
	require.NoError(t, err)
	require.Contains(t, text, `{"a":{"m":{"r":2,"s":1},"n":1},"b":{"x":1},"c":{"a":{"k":{"p":2,"q":1}},"b":[{"y":{"c":[],"d":{}},"z":1}]}}`)
}

func TestExcludedPartsOutOfOrderLeaveNoTrace(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t, hashing.Exclude("/b", "/l/*/x", "/l/1"))
	text, err := hasher.Explain(message.NewMessage("", []byte(`{"z":{"d":1,"c":{"f":1,"e":2}},"b":{"q":1,"p":{"s":1,"r":2}},"l":[{"x":{"b":1,"a":2},"w":1},{"g":1,"f":2},{"v":1,"u":2}],"a":{"y":1,"x":2}}`)))
	require.NoError(t, err)
	require.Contains(t, text, `{"a":{"x":2,"y":1},"l":[{"w":1},null,{"u":2,"v":1}],"z":{"c":{"e":2,"f":1},"d":1}}`)
}

func TestExplainShowsAllThatCounts(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t, hashing.Metadata("name", "missing"), hashing.Exclude("/sent_at"))
	msg := message.NewMessage("1", []byte(`{"sent_at":"now","total":1.50}`))
	msg.Metadata.Set("name", "OrderPlaced")
	msg.Metadata.Set("trace", "hidden")
	text, err := hasher.Explain(msg)
	require.NoError(t, err)
	for _, part := range []string{`{"total":1.5}`, "name", "OrderPlaced", "missing", "absent"} {
		require.Contains(t, text, part)
	}
	require.NotContains(t, text, "hidden")
	require.NotContains(t, text, "sent_at")
}

func TestDiffNamesWhereMessagesDiffer(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t, hashing.Metadata("name"), hashing.Exclude("/sent_at"))
	msg := func(name, payload string) *message.Message {
		msg := message.NewMessage("", []byte(payload))
		msg.Metadata.Set("name", name)
		return msg
	}
	for _, c := range []struct {
		reason string
		a, b   *message.Message
		want   []string
	}{
		{"equal", msg("n", `{"a":1,"sent_at":1}`), msg("n", `{"sent_at":2,"a":1.0}`), nil},
		{"a member", msg("n", `{"a":1,"b":{"c":[1,2,{"d/e":1}]}}`), msg("n", `{"a":1,"b":{"c":[1,2,{"d/e":2}]}}`), []string{"/b/c/2/d~1e"}},
		{"present or not, and order", msg("n", `{"b":1,"a":1}`), msg("n", `{"c":1,"a":"1"}`), []string{"/a", "/b", "/c"}},
		{"length", msg("n", `{"l":[1]}`), msg("n", `{"l":[1,2,3]}`), []string{"/l/1"}},
		{"metadata", msg("n", `{}`), msg("m", `{}`), []string{"metadata name"}},
		{"metadata absent or empty", message.NewMessage("", []byte(`{}`)), msg("", `{}`), []string{"metadata name"}},
		{"bytes", msg("n", `x`), msg("n", `y`), []string{""}},
		{"JSON and bytes", msg("n", `{"a":1}`), msg("n", `{"a":1`), []string{""}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			differences, err := hasher.Diff(c.a, c.b)
			require.NoError(t, err)
			require.Equal(t, c.want, differences)
		})
	}
}
