package middleware

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// KeyFromMetadata is the metadata with this name.
//
// Names that cannot identify one message are refused when the inbox is built: correlation and trace
// identifiers, counters of deliveries, times, and descriptions such as the type. KeyFromMetadataUnchecked
// takes them.
func KeyFromMetadata(name string) KeyExtractor {
	return metadataKey{name: name}
}

// KeyFromMetadataUnchecked is KeyFromMetadata for a name that it refuses, if your producers do give every
// message its own value there.
func KeyFromMetadataUnchecked(name string) KeyExtractor {
	return metadataKey{name: name, unchecked: true}
}

type metadataKey struct {
	name      string
	unchecked bool
}

func (k metadataKey) ExtractKey(msg *message.Message) (string, error) {
	value, ok := msg.Metadata[k.name]
	switch {
	case !ok:
		return "", fmt.Errorf("%w: metadata %q is missing", ErrNoKey, k.name)
	case value == "":
		return "", fmt.Errorf("%w: metadata %q is empty", ErrNoKey, k.name)
	default:
		return value, nil
	}
}

func (k metadataKey) Validate() error {
	if k.name == "" {
		return errors.New("KeyFromMetadata has no name")
	}
	if reason := whyNoIdentity(k.name); reason != "" && !k.unchecked {
		return fmt.Errorf("metadata %q cannot identify one message: %s; use another name, or KeyFromMetadataUnchecked if each message has its own value there", k.name, reason)
	}
	return nil
}

// Each reason with the names, in lower case and without separators, to which it applies.
var noIdentity = map[string][]string{
	"several messages of one flow share it": {
		"correlation", "correlationid", "causation", "causationid", "conversationid", "sessionid", "groupid",
		"traceparent", "tracestate", "traceid", "spanid", "b3", "b3traceid", "b3spanid", "baggage", "replyto", "partitionkey",
	},
	"it changes with each delivery, so that a redelivery would look new": {
		"delivery", "deliverycount", "deliveryattempt", "deliverytag", "delivered", "numdelivered", "redelivered",
		"redeliverycount", "attempt", "attempts", "attemptnumber", "attemptcount", "retry", "retries", "retrycount",
		"retrynum", "retryno", "death", "deathcount", "firstdeathreason", "firstdeathqueue", "firstdeathexchange",
		"lastdeathreason", "lastdeathqueue", "lastdeathexchange", "offset", "partition", "sequence", "consumertag",
		"approximatereceivecount",
	},
	"it is a time: two messages can have one, and a redelivery another": {
		"time", "timestamp", "date", "receivedat", "receivetime", "receivedtime", "enqueuedat", "enqueuedtime",
		"publishedat", "publishtime", "sentat", "senttimestamp", "createdat", "occurredat", "processedat",
		"approximatefirstreceivetimestamp",
	},
	"it describes the message and does not identify it": {
		"name", "type", "eventtype", "messagetype", "source", "subject", "specversion", "dataschema",
		"contractversion", "schemaversion", "version", "contenttype", "contentencoding", "datacontenttype",
		"tenant", "tenantid", "topic", "queue", "exchange", "routingkey", "appid", "priority",
	},
	"poisoning and redriving set it": {
		"reasonpoisoned", "topicpoisoned", "handlerpoisoned", "subscriberpoisoned",
	},
}

var separators = strings.NewReplacer("-", "", "_", "", ":", "", ".", "", " ", "")

func whyNoIdentity(name string) string {
	plain := strings.ToLower(name)
	if strings.HasPrefix(plain, "inbox_") {
		return "the inbox sets it"
	}
	plain = separators.Replace(plain)
	candidates := []string{plain}
	for _, prefix := range []string{"x", "amqp", "ce", "cloudevents"} {
		if rest, ok := strings.CutPrefix(plain, prefix); ok {
			candidates = append(candidates, rest)
		}
	}
	for reason, names := range noIdentity {
		for _, refused := range names {
			for _, candidate := range candidates {
				if candidate == refused {
					return reason
				}
			}
		}
	}
	return ""
}
