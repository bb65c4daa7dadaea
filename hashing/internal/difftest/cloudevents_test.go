package difftest

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

// asMessage writes an event with the SDK as an HTTP request and takes it over as a bridge to Watermill does: headers
// become metadata.
func asMessage(t *testing.T, event cloudevents.Event, mode func(context.Context) context.Context) *message.Message {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, "http://localhost/", nil)
	require.NoError(t, err)
	require.NoError(t, cehttp.WriteRequest(mode(t.Context()), (*binding.EventMessage)(&event), request))
	var payload []byte
	if request.Body != nil {
		payload, err = io.ReadAll(request.Body)
		require.NoError(t, err)
	}
	msg := message.NewMessage("", payload)
	for name := range request.Header {
		msg.Metadata.Set(name, request.Header.Get(name))
	}
	return msg
}

func TestTheSDKsEncodingsOfOneEventAreEqual(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t, hashing.CloudEvents("time", "tenant"), hashing.Strict())
	events := map[string]func(event *cloudevents.Event) error{
		"JSON": func(event *cloudevents.Event) error {
			return event.SetData(cloudevents.ApplicationJSON, map[string]any{"b": 1.5, "a": []int{1, 2}, "text": "é\u2028"})
		},
		"JSON string": func(event *cloudevents.Event) error { return event.SetData(cloudevents.ApplicationJSON, "<a/>") },
		"JSON null": func(event *cloudevents.Event) error {
			return event.SetData(cloudevents.ApplicationJSON, []byte("null"))
		},
		"vendor JSON": func(event *cloudevents.Event) error {
			return event.SetData("application/vnd.order+json", []byte(`{"a":1}`))
		},
		"text": func(event *cloudevents.Event) error { return event.SetData(cloudevents.TextPlain, "häl lo") },
		"XML":  func(event *cloudevents.Event) error { return event.SetData("application/xml", []byte("<a/>")) },
		"bytes": func(event *cloudevents.Event) error {
			return event.SetData("application/octet-stream", []byte{0xff, 0, 1})
		},
		"no data": func(event *cloudevents.Event) error { return nil },
		"subject and schema": func(event *cloudevents.Event) error {
			event.SetSubject("o 1/ü")
			event.SetDataSchema("/schema?v=2")
			return nil
		},
	}
	seen := map[string]string{}
	for name, fill := range events {
		event := cloudevents.NewEvent()
		event.SetID("1 ü%")
		event.SetSource("/ordérs x")
		event.SetType("OrderPlaced")
		event.SetTime(time.Date(2026, 3, 1, 9, 30, 0, 500_000_000, time.FixedZone("", 3600)))
		event.SetExtension("tenant", "acme & sons")
		require.NoError(t, fill(&event), name)

		structured, err := hasher.Hash(asMessage(t, event, binding.WithForceStructured))
		require.NoError(t, err, name)
		binary, err := hasher.Hash(asMessage(t, event, binding.WithForceBinary))
		require.NoError(t, err, name)
		require.Equal(t, structured, binary, name)
		require.NotContains(t, seen, structured, "%s is equal to another event", name)
		seen[structured] = name
	}
}
