package middleware_test

import (
	"fmt"
	"testing"

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
		"HTTP, encoded twice":           metadata("ce-id", "e%25201", "ce-source", "/ord%25C3%25A9rs"),
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

func FuzzKeyFromCloudEvents(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/o"}`), "1", "/o", "application/cloudevents+json")
	f.Add([]byte(`[]`), "", "", "")
	f.Add([]byte("\xff"), "%zz", "\x00", "text/plain; x=")
	f.Fuzz(func(t *testing.T, text []byte, id, source, contentType string) {
		for _, prefix := range []string{"ce-", "ce_", "cloudEvents:"} {
			msg := message.NewMessage("", text)
			msg.Metadata.Set(prefix+"id", id)
			msg.Metadata.Set(prefix+"source", source)
			msg.Metadata.Set("content-type", contentType)
			key, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
			again, errAgain := middleware.KeyFromCloudEvents.ExtractKey(msg.Copy())
			if key != again || (err == nil) != (errAgain == nil) {
				t.Fatalf("two answers for one message: %q %v, %q %v", key, err, again, errAgain)
			}
		}
	})
}

func Example_keyFromCloudEvents() {
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("ce_source", "/orders")
	msg.Metadata.Set("ce_id", "42")
	key, err := middleware.KeyFromCloudEvents.ExtractKey(msg)
	fmt.Println(key, err)
	// Output: 7:/orders+2:42 <nil>
}
