package inboxamqp

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// HeadersCutKey is set on a poisoned copy whose headers had to be cut: to how many were replaced by their digest or left
// out.
const HeadersCutKey = "amqp_headers_cut"

// maxEvidence is the size in bytes up to which UUID and evidence are never cut. The inbox takes no longer key for one.
const maxEvidence = 8 << 10

// maxPoisonedHeaders is what the headers of a poisoned copy may take in bytes. AMQP does not split them: they must fit
// into one frame with the properties, and RabbitMQ's default is 128 KiB.
const maxPoisonedHeaders = 120 << 10

// isPoisoned tells whether msg is a copy for the poison queue, of the inbox or of Watermill's own middleware.
func isPoisoned(metadata message.Metadata) bool {
	_, poisoned := metadata[wmmiddleware.ReasonForPoisonedKey]
	return poisoned
}

// isEvidence tells whether a header says why and where a message was poisoned. The names are listed one by one: with a
// prefix, a producer could fill the frame with it.
func isEvidence(name string) bool {
	switch name {
	case wmmiddleware.ReasonForPoisonedKey, wmmiddleware.PoisonedTopicKey, wmmiddleware.PoisonedHandlerKey,
		wmmiddleware.PoisonedSubscriberKey, middleware.PoisonOutcomeKey, middleware.PoisonConsumerKey,
		middleware.PoisonMessageKeyKey, middleware.PoisonPayloadHashKey, middleware.PoisonStoredHashKey,
		middleware.PoisonAcceptedAtKey, middleware.PoisonResultReferenceKey, middleware.PoisonedAtKey, middleware.RedrivenKey:
		return true
	}
	return false
}

// cutToFit makes the headers of a poisoned copy fit into a frame. Otherwise a producer could fill the frame so far that
// the copy, which has evidence in addition and tables as text, cannot be published: RabbitMQ closes the connection, the
// message is delivered again, for ever.
//
// The largest headers become digests; if that is not enough, the largest are left out. UUID and evidence stay, unless one
// of them is what fills the frame.
func cutToFit(headers amqp091.Table, uuidHeader string) {
	total := 0
	var names []string
	for name, value := range headers {
		total += headerSize(name, value)
		names = append(names, name)
	}
	if total <= maxPoisonedHeaders {
		return
	}
	total += headerSize(HeadersCutKey, strconv.Itoa(len(names)))

	stays := func(name string) bool {
		return (name == uuidHeader || isEvidence(name)) && headerSize(name, headers[name]) <= maxEvidence
	}
	cut := map[string]bool{}
	// shrink goes from the largest header to the smallest until the rest fits.
	shrink := func(one func(name string)) {
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(headerSize(b, headers[b])-headerSize(a, headers[a]), cmp.Compare(a, b))
		})
		for _, name := range names {
			if total <= maxPoisonedHeaders {
				return
			}
			if !stays(name) {
				one(name)
			}
		}
	}
	shrink(func(name string) {
		text, _ := headers[name].(string)
		if short := digest([]byte(text)); len(short) < len(text) {
			headers[name] = short
			total -= len(text) - len(short)
			cut[name] = true
		}
	})
	shrink(func(name string) {
		total -= headerSize(name, headers[name])
		delete(headers, name)
		cut[name] = true
	})
	headers[HeadersCutKey] = strconv.Itoa(len(cut))
}

// headerSize is the size of a string header on the wire: short string, type, long string.
func headerSize(name string, value any) int {
	text, _ := value.(string)
	return 1 + len(name) + 1 + 4 + len(text)
}
