package middleware_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

func TestOneCloudEventHasOneKeyInEveryMode(t *testing.T) {
	t.Parallel()
	const want = "8:/ordérs+3:e 1"
	structured := `{"specversion":"1.0","id":"e 1","source":"/ordérs","type":"OrderPlaced","data":{"id":"other"}}`
	withContentType := func(name, value string) *message.Message {
		msg := payload(structured)
		msg.Metadata.Set(name, value)
		return msg
	}
	for reason, msg := range map[string]*message.Message{
		"HTTP":                          metadata("ce-id", "e%201", "ce-source", "/ord%C3%A9rs"),
		"HTTP, canonical header names":  metadata("Ce-Id", "e%201", "Ce-Source", "/ord%C3%A9rs"),
		"Kafka":                         metadata("ce_id", "e 1", "ce_source", "/ordérs"),
		"AMQP":                          metadata("cloudEvents:id", "e 1", "cloudEvents:source", "/ordérs"),
		"AMQP, the other prefix":        metadata("cloudEvents_id", "e 1", "cloudEvents_source", "/ordérs"),
		"HTTP, not encoded":             metadata("ce-id", "e 1", "ce-source", "/ordérs"),
		"HTTP, a URI encoded twice":     metadata("ce-id", "e%201", "ce-source", "/ord%25C3%25A9rs"),
		"a source that is a URI":        metadata("ce_id", "e 1", "ce_source", "/ord%C3%A9rs"),
		"two spellings that agree":      metadata("ce_id", "e 1", "ce-id", "e%201", "ce_source", "/ordérs"),
		"structured, by content":        payload(structured),
		"structured, by content type":   withContentType("content-type", "application/cloudevents+json; charset=utf-8"),
		"structured, by another header": withContentType("ContentType", "Application/CloudEvents+JSON"),
		"binary whose data looks like an event": func() *message.Message {
			msg := payload(`{"specversion":"1.0","id":"inner","source":"inner"}`)
			msg.Metadata.Set("ce_id", "e 1")
			msg.Metadata.Set("ce_source", "/ordérs")
			return msg
		}(),
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			key, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
			require.NoError(t, err)
			require.Equal(t, want, key)
		})
	}
}

func TestIdsThatDifferInTheirEncodingAreDifferentEvents(t *testing.T) {
	t.Parallel()
	keys := map[string]string{}
	for _, id := range []string{"A", "%41", "%2541", "a b", "a%20b", "50%", "50%25"} {
		for _, msg := range []*message.Message{
			metadata("ce_id", id, "ce_source", "/o"),
			metadata("cloudEvents:id", id, "cloudEvents:source", "/o"),
			metadata("ce-id", url.PathEscape(id), "ce-source", "/o"),
			payload(fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/o","type":"t"}`, id)),
		} {
			key, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
			require.NoError(t, err)
			if other, ok := keys[key]; ok {
				require.Equal(t, other, id, "two ids have the key %q", key)
			}
			keys[key] = id
		}
	}
	require.Len(t, keys, 7, "one id has two keys")
}

func TestACloudEventWithoutAnIdentityHasNoKey(t *testing.T) {
	t.Parallel()
	for reason, msg := range map[string]*message.Message{
		"no event at all":            payload(`{"id":"1"}`),
		"not JSON":                   payload(`specversion`),
		"no id":                      metadata("ce_source", "/orders"),
		"no source":                  metadata("ce_id", "1"),
		"empty id":                   metadata("ce_id", "", "ce_source", "/orders"),
		"structured without source":  payload(`{"specversion":"1.0","id":"1","type":"t"}`),
		"not declared, an id twice":  payload(`{"specversion":"1.0","id":"1","id":"2","source":"/o","type":"t"}`),
		"an attribute in wrong case": metadata("CE_ID", "1", "CE_SOURCE", "/orders"),
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			_, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
			require.ErrorIs(t, err, middleware.ErrNoKey)
		})
	}
}

func TestACloudEventWhoseIdentityIsNotClearIsAnErrorThatSaysWhy(t *testing.T) {
	t.Parallel()
	structured := func(text string, pairs ...string) *message.Message {
		msg := metadata(pairs...)
		msg.Payload = []byte(text)
		msg.Metadata.Set("content-type", "application/cloudevents+json")
		return msg
	}
	for _, c := range []struct {
		reason string
		msg    *message.Message
		says   []string
	}{
		{"two spellings disagree", metadata("ce_id", "1", "cloudEvents:id", "2", "ce_source", "/o"), []string{"ce_id", "cloudEvents:id", "disagree"}},
		{"the source's spellings disagree", metadata("ce_id", "1", "ce_source", "/o", "ce-source", "/p"), []string{"ce_source", "ce-source"}},
		{"binary and structured disagree", structured(`{"specversion":"1.0","id":"1","source":"/o"}`, "ce_id", "2"), []string{"ce_id", "payload"}},
		{"declared, but not JSON", structured(`id=1`), []string{"not strict JSON"}},
		{"an id twice", structured(`{"specversion":"1.0","id":"1","id":"2","source":"/o"}`), []string{"duplicate"}},
		{"an id that is an object", structured(`{"specversion":"1.0","id":{},"source":"/o"}`), []string{"object"}},
		{"a batch", func() *message.Message {
			msg := payload(`[]`)
			msg.Metadata.Set("content-type", "application/cloudevents-batch+json")
			return msg
		}(), []string{"batch"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			_, err := middleware.KeyFromCloudEvents.ExtractKey(c.msg)
			require.Error(t, err)
			require.NotErrorIs(t, err, middleware.ErrNoKey)
			for _, text := range c.says {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestAnEventInAnotherSpellingOfItsJSONHasTheSameKey(t *testing.T) {
	t.Parallel()
	for reason, text := range map[string]string{
		"as sent":        `{"specversion":"1.0","id":"é-1","source":"/o","type":"t","data":{"id":"2"}}`,
		"members moved":  `{"data":{"id":"2"},"type":"t","source":"/o","id":"é-1","specversion":"1.0"}`,
		"white space":    "\n{ \"specversion\" : \"1.0\",\t\"id\":\"é-1\", \"source\":\"/o\",\r\n\"type\":\"t\" } ",
		"escapes":        `{"specversion":"1.0","\u0069d":"\u00e9-1","source":"\/o","type":"t"}`,
		"other data":     `{"specversion":"1.0","id":"é-1","source":"/o","type":"t","data_base64":"AA=="}`,
		"other metadata": `{"specversion":"1.0","id":"é-1","source":"/o","type":"u","subject":"s","time":"2026-01-02T03:04:05Z"}`,
	} {
		for _, contentType := range []string{"", "application/cloudevents+json", "application/cloudevents+json;charset=UTF-8"} {
			msg := payload(text)
			msg.Metadata.Set("content-type", contentType)
			key, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
			require.NoError(t, err, reason)
			require.Equal(t, "2:/o+4:é-1", key, reason)
		}
	}
}

func TestAnEventIsIdentifiedBySourceAndIDTogether(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, event := range [][2]string{{"/o", "1"}, {"/o", "2"}, {"/p", "1"}, {"/o1", "1"}, {"/o", "11"}, {"/o+1:1", "1"}, {"/O", "1"}} {
		key, err := middleware.KeyFromCloudEvents.ExtractKey(metadata("ce_source", event[0], "ce_id", event[1]))
		require.NoError(t, err)
		require.NotContains(t, seen, key, "%q", event)
		seen[key] = event[0]
	}
}

func TestAnEventDoesNotBreakTheReader(t *testing.T) {
	t.Parallel()
	const event = `{"specversion":"1.0","type":"t","id":"1","source":"/o","data":`
	for reason, text := range map[string]string{
		"brackets":              strings.Repeat("[", 20<<20),
		"data of brackets":      event + strings.Repeat("[", 20<<20),
		"data of objects":       event + strings.Repeat(`{"a":`, 1<<20),
		"closed, but deep":      event + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + "}",
		"an id of brackets":     `{"specversion":"1.0","type":"t","source":"/o","id":` + strings.Repeat("[", 1<<20),
		"an id that was broken": `{"specversion":"1.0","type":"t","id":"\ud83d","source":"/o"}`,
		"invalid UTF-8":         "{\"specversion\":\"1.0\",\"type\":\"t\",\"id\":\"\xff\",\"source\":\"/o\"}",
		"trailing data":         `{"specversion":"1.0","type":"t","id":"1","source":"/o"}{}`,
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			msg := payload(text)
			_, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
			require.Error(t, err)

			msg = payload(text)
			msg.Metadata.Set("content-type", "application/cloudevents+json")
			_, err = middleware.KeyFromCloudEvents.ExtractKey(msg)
			require.Error(t, err)
			require.NotErrorIs(t, err, middleware.ErrNoKey, "it says that it is an event")
			require.Less(t, len(err.Error()), 300)
		})
	}
}

// FuzzKeyFromCloudEvents claims of every message: there is one answer, which is a key or an error. And of every event that
// has no percent sign in its source and id: it has one key in all spellings and modes.
func FuzzKeyFromCloudEvents(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/o"}`), "1", "/o", "application/cloudevents+json")
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/o","type":"t"}`), "", "", "")
	f.Add([]byte(`[]`), "", "", "")
	f.Add([]byte("\xff"), "%zz", "\x00", "text/plain; x=")
	f.Fuzz(func(t *testing.T, text []byte, id, source, contentType string) {
		for _, prefix := range []string{"ce-", "ce_", "cloudEvents:", "cloudEvents_", "Ce-"} {
			msg := message.NewMessage("", text)
			msg.Metadata.Set(prefix+"id", id)
			msg.Metadata.Set(prefix+"source", source)
			msg.Metadata.Set("content-type", contentType)
			key, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
			again, errAgain := middleware.KeyFromCloudEvents.ExtractKey(msg.Copy())
			if key != again || (err == nil) != (errAgain == nil) {
				t.Fatalf("two answers for one message: %q %v, %q %v", key, err, again, errAgain)
			}
			if (err == nil) != (key != "") {
				t.Fatalf("neither a key nor an error, or both: %q, %v", key, err)
			}
		}
		if isAttribute(id) && isAttribute(source) {
			requireOneKey(t, id, source)
		}
	})
}

// isAttribute: a percent sign is left out because a value that looks encoded is decoded in every mode.
func isAttribute(text string) bool {
	return text != "" && utf8.ValidString(text) && !strings.Contains(text, "%") && !strings.ContainsFunc(text, unicode.IsControl)
}

func requireOneKey(t *testing.T, id, source string) {
	t.Helper()
	structured, err := json.Marshal(map[string]string{"specversion": "1.0", "type": "t", "id": id, "source": source})
	require.NoError(t, err)
	declared := payload(string(structured))
	declared.Metadata.Set("Content-Type", "application/cloudevents+json")
	want := fmt.Sprintf("%d:%s+%d:%s", len(source), source, len(id), id)
	for _, msg := range []*message.Message{
		metadata("ce-id", url.PathEscape(id), "ce-source", url.PathEscape(source)),
		metadata("Ce-Id", url.PathEscape(id), "Ce-Source", url.PathEscape(source)),
		metadata("ce_id", id, "ce_source", source),
		metadata("cloudEvents:id", id, "cloudEvents_source", source),
		payload(string(structured)),
		declared,
	} {
		key, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
		require.NoError(t, err)
		require.Equal(t, want, key)
	}
}

func Example_keyFromCloudEvents() {
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("ce_source", "/orders")
	msg.Metadata.Set("ce_id", "42")
	key, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
	fmt.Println(key, err)
	// Output: 7:/orders+2:42 <nil>
}
