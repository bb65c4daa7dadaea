package inboxamqp_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/middleware/inboxamqp"
)

func poisoned(metadata message.Metadata) *message.Message {
	msg := message.NewMessage("u", nil)
	for name, value := range metadata {
		msg.Metadata[name] = value
	}
	for _, name := range evidence {
		msg.Metadata[name] = strings.Repeat("e", 300)
	}
	return msg
}

var evidence = []string{
	wmmiddleware.ReasonForPoisonedKey, wmmiddleware.PoisonedTopicKey, wmmiddleware.PoisonedHandlerKey, wmmiddleware.PoisonedSubscriberKey,
	middleware.PoisonOutcomeKey, middleware.PoisonConsumerKey, middleware.PoisonMessageKeyKey, middleware.PoisonPayloadHashKey,
	middleware.PoisonStoredHashKey, middleware.PoisonAcceptedAtKey, middleware.PoisonResultReferenceKey, middleware.PoisonedAtKey,
	middleware.RedrivenKey,
}

func TestAPoisonedCopyFitsIntoAFrame(t *testing.T) {
	t.Parallel()
	tiny := message.Metadata{}
	for i := range 40_000 {
		tiny["inbox_"+strconv.Itoa(i)] = ""
	}
	for name, metadata := range map[string]message.Metadata{
		"one that is too long": {"h": strings.Repeat("h", 128<<10)},
		"many that are tiny":   tiny,
		"both":                 {"h": strings.Repeat("h", 100<<10), "i": strings.Repeat("i", 100<<10), "j": "j"},
	} {
		headers := marshal(t, poisoned(metadata)).Headers
		size := 0
		for header, value := range headers {
			size += 6 + len(header) + len(value.(string))
		}
		assert.LessOrEqual(t, size, 120<<10, name)
		assert.Contains(t, headers, inboxamqp.HeadersCutKey, name)
		assert.Equal(t, "u", headers[amqp.DefaultMessageUUIDHeaderKey], name)
		for _, header := range evidence {
			assert.Len(t, headers[header], 300, "%s: %s", name, header)
		}
	}
}

func TestOnlyAsManyHeadersOfAPoisonedCopyAreCutAsMust(t *testing.T) {
	t.Parallel()
	headers := marshal(t, poisoned(message.Metadata{
		"large": strings.Repeat("h", 100<<10), "larger": strings.Repeat("i", 101<<10), "small": "s",
	})).Headers
	assert.Regexp(t, "^sha256:[0-9a-f]{64}$", headers["larger"])
	assert.Len(t, headers["large"], 100<<10)
	assert.Equal(t, "s", headers["small"])
	assert.Equal(t, "1", headers[inboxamqp.HeadersCutKey])
}

func TestOnlyAsManyTinyHeadersOfAPoisonedCopyAreLeftOutAsMust(t *testing.T) {
	t.Parallel()
	msg := poisoned(nil)
	for i := range 40_000 {
		msg.Metadata["n"+strconv.Itoa(i)] = "v"
	}
	headers := marshal(t, msg).Headers
	size := 0
	for name, value := range headers {
		size += 6 + len(name) + len(value.(string))
		if strings.HasPrefix(name, "n") {
			assert.Equal(t, "v", value, "a digest would be longer")
		}
	}
	assert.Greater(t, size, 119<<10)
	assert.Equal(t, strconv.Itoa(len(msg.Metadata)+2-len(headers)), headers[inboxamqp.HeadersCutKey])
}

func TestAPoisonedCopyThatFitsIsNotCut(t *testing.T) {
	t.Parallel()
	msg := poisoned(message.Metadata{"h": strings.Repeat("h", 100<<10)})
	headers := marshal(t, msg).Headers
	assert.Equal(t, msg.Metadata["h"], headers["h"])
	assert.NotContains(t, headers, inboxamqp.HeadersCutKey)
}

func TestAMessageThatIsNotPoisonedIsNotCut(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u", nil)
	msg.Metadata["h"] = strings.Repeat("h", 1<<20)
	assert.Equal(t, msg.Metadata["h"], marshal(t, msg).Headers["h"])
}

func TestAnIdentityOrAReasonThatFillsTheFrameIsCutAndStaysDifferent(t *testing.T) {
	t.Parallel()
	for _, name := range []string{amqp.DefaultMessageUUIDHeaderKey, wmmiddleware.ReasonForPoisonedKey} {
		cut := func(last string) string {
			msg := poisoned(nil)
			text := strings.Repeat("u", 128<<10) + last
			if name == wmmiddleware.ReasonForPoisonedKey {
				msg.Metadata[name] = text
			} else {
				msg.UUID = text
			}
			return marshal(t, msg).Headers[name].(string)
		}
		assert.Regexp(t, "^sha256:[0-9a-f]{64}$", cut("1"))
		assert.NotEqual(t, cut("1"), cut("2"))
	}
}
