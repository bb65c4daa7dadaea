package middleware

import (
	"errors"
	"fmt"
	"strings"
)

// noIdentity is why metadata with one of the names does not identify a message. Names are in lower case and without
// separators.
var noIdentity = []struct {
	reason string
	// changes: not even as a part of a key, for a redelivery would look new.
	changes bool
	names   []string
}{
	{
		reason: "several messages of one flow share it",
		names: []string{
			"correlation", "correlationid", "causation", "causationid", "conversationid", "sessionid", "groupid",
			"traceparent", "tracestate", "traceid", "spanid", "b3", "b3traceid", "b3spanid", "baggage", "replyto", "partitionkey",
			"amzntraceid", "ubertraceid", "cloudtracecontext", "datadogtraceid", "requestcorrelationid", "correlationuuid",
			"parentid", "causeid",
		},
	},
	{
		reason:  "it changes with each delivery, so that a redelivery would look new",
		changes: true,
		names: []string{
			"delivery", "deliverycount", "deliveryattempt", "deliverytag", "delivered", "numdelivered", "redelivered",
			"redeliverycount", "attempt", "attempts", "attemptnumber", "attemptcount", "retry", "retries", "retrycount",
			"retrynum", "retryno", "death", "deathcount", "firstdeathreason", "firstdeathqueue", "firstdeathexchange",
			"lastdeathreason", "lastdeathqueue", "lastdeathexchange", "consumertag", "approximatereceivecount",
			"receivedat", "receivetime", "receivedtime", "enqueuedat", "enqueuedtime", "approximatefirstreceivetimestamp",
			"receivedtimestamp", "receivetimestamp", "kafkareceivedtimestamp", "enqueuetime", "optenqueuedtime", "queuedat",
			"ingestedat", "consumedat", "googclientdeliveryattempt", "jmsxdeliverycount", "kafkadeliveryattempt",
			"deliveryattempts", "retryattempt", "natsnumdelivered", "retriesleft", "watermilldelayeduntil",
		},
	},
	{
		reason: "it is a time, which two messages can share",
		names: []string{
			"time", "timestamp", "date", "publishedat", "publishtime", "sentat", "senttimestamp", "createdat", "occurredat", "processedat", "published",
			"natstimestamp",
		},
	},
	{
		reason: "it describes the message and does not identify it",
		names: []string{
			"name", "type", "eventtype", "messagetype", "source", "subject", "specversion", "dataschema",
			"contractversion", "schemaversion", "version", "contenttype", "contentencoding", "datacontenttype",
			"tenant", "tenantid", "topic", "queue", "exchange", "routingkey", "appid", "priority", "partition",
		},
	},
	{
		reason:  "poisoning and redriving set it",
		changes: true,
		names:   []string{"reasonpoisoned", "topicpoisoned", "handlerpoisoned", "subscriberpoisoned"},
	},
}

// identityError says why an extractor is no key.
type identityError struct {
	error
	changes bool
}

// identifies returns an error for an extractor that surely cannot identify one message.
func identifies(extractor KeyExtractor) error {
	switch extractor := extractor.(type) {
	case constantKey:
		return identityError{error: fmt.Errorf("ConstantKey %q alone is the same for every message; join it with a key", string(extractor))}
	case metadataKey:
		return extractor.identifies()
	case firstKey:
		var problems []error
		for _, one := range extractor {
			problems = append(problems, identifies(one))
		}
		return errors.Join(problems...)
	case joinedKeys:
		return extractor.identifies()
	default:
		return nil
	}
}

func (k joinedKeys) identifies() error {
	var problems []error
	anyIdentifies := false
	for _, part := range k {
		err := identifies(part)
		var problem identityError
		if errors.As(err, &problem) && problem.changes {
			return err
		}
		anyIdentifies = anyIdentifies || err == nil
		problems = append(problems, err)
	}
	if anyIdentifies {
		return nil
	}
	return errors.Join(problems...)
}

func (k metadataKey) identifies() error {
	if k.unchecked {
		return nil
	}
	refuse := func(reason string, changes bool) error {
		return identityError{changes: changes, error: fmt.Errorf(
			"metadata %q cannot identify one message: %s; use another name, or KeyFromMetadataUnchecked if each message has its own value there", k.name, reason)}
	}
	plain := strings.ToLower(k.name)
	if strings.HasPrefix(plain, "inbox_") {
		return refuse("the inbox sets it", true)
	}
	plain = strings.NewReplacer("-", "", "_", "", ":", "", ".", "", " ", "").Replace(plain)
	for _, list := range noIdentity {
		for _, name := range list.names {
			for _, prefix := range []string{"", "x", "amqp", "ce", "cloudevents"} {
				if plain == prefix+name {
					return refuse(list.reason, list.changes)
				}
			}
		}
	}
	return nil
}
