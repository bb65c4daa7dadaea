package hashing

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	structuredMediaType = "application/cloudevents+json"
	batchMediaType      = "application/cloudevents-batch"
)

// EventAttribute finds an attribute of a message that is a CloudEvent (CloudEvents 1.0), in whatever mode it is.
//
// In binary mode attributes are metadata, in the spellings of the HTTP binding (ce-id, also as Ce-Id), of the Kafka
// binding (ce_id) and of the AMQP binding (cloudEvents:id, cloudEvents_id). In structured mode they are members of
// the JSON payload: when the content type says application/cloudevents+json or, if the metadata has no attribute at
// all, when the payload is an object with specversion, id, source and type. An attribute that is null or empty is
// as good as none.
//
// In the HTTP spellings values are percent-decoded, as section 3.1.3.2 of that binding has it; one that cannot have been
// encoded (a space, a character beyond ASCII, a lone percent sign) is taken as it is, for the Go SDK, for one, does not
// encode. Source and dataschema are URIs, which may be percent-encoded themselves: they are given decoded in every mode.
//
// Data and data_base64 are no attributes. It returns an error when spellings or modes disagree, when the message is a batch, and when it says that it is
// structured and is no strict JSON object. It is safe for concurrent use.
func EventAttribute(msg *message.Message, name string) (value string, present bool, err error) {
	if !attributeName.MatchString(name) || name == "data" {
		return "", false, nil
	}
	value, spelling, err := binaryAttribute(msg.Metadata, name)
	if err != nil {
		return "", false, err
	}
	present = spelling != ""
	mediaType := mediaTypeOf(msg.Metadata)
	if strings.HasPrefix(mediaType, batchMediaType) {
		return "", false, errors.New("the message is a batch of CloudEvents; split it before")
	}
	declared := mediaType == structuredMediaType
	if !declared && (present || !bytes.Contains(msg.Payload, []byte(`"specversion"`)) || isBinary(msg.Metadata)) {
		return value, present, nil
	}

	p := attributePool.Get().(*parser)
	defer attributePool.Put(p)
	if err := p.parse(msg.Payload, nil, false); err != nil {
		if declared {
			return "", false, fmt.Errorf("structured CloudEvent: %w", err)
		}
		return "", false, nil
	}
	if !declared && !p.looksStructured() {
		return "", false, nil
	}
	structured, inPayload, err := p.structuredAttribute(name)
	switch {
	case err != nil:
		return "", false, err
	case !inPayload:
		return value, present, nil
	case present && value != structured:
		return "", false, fmt.Errorf("CloudEvents attribute %q is another one in the payload than in metadata %q; the producer must send one", name, spelling)
	default:
		return structured, true, nil
	}
}

var attributePool = sync.Pool{New: func() any { return &parser{} }}

func isStructured(metadata message.Metadata) bool {
	return mediaTypeOf(metadata) == structuredMediaType
}

var contentTypeNames = [...]string{"content-type", "Content-Type", "content_type", "contentType", "ContentType"}

// contentType reads the spellings that brokers and bridges use.
func contentType(metadata message.Metadata) string {
	for _, name := range contentTypeNames {
		if value := metadata[name]; value != "" {
			return value
		}
	}
	return ""
}

// mediaTypeOf is the media type of a CloudEvent's envelope, or empty: other types need not be read.
func mediaTypeOf(metadata message.Metadata) string {
	text := contentType(metadata)
	if len(text) < len(structuredMediaType) {
		return ""
	}
	mediaType, _, err := mime.ParseMediaType(text)
	if err != nil {
		return ""
	}
	return mediaType
}

func isBinary(metadata message.Metadata) bool {
	for _, name := range []string{"specversion", "id", "source", "type"} {
		for _, spelling := range spellingsOf(name) {
			if metadata[spelling] != "" {
				return true
			}
		}
	}
	return false
}

// spellings of the attributes that the specification names; made once, because every delivery looks for them.
var spellings = func() map[string][5]string {
	all := map[string][5]string{}
	for _, name := range []string{"specversion", "id", "source", "type", "subject", "dataschema", "datacontenttype", "time"} {
		all[name] = spell(name)
	}
	return all
}()

func spellingsOf(name string) [5]string {
	if known, ok := spellings[name]; ok {
		return known
	}
	return spell(name)
}

func spell(name string) [5]string {
	return [...]string{"ce-" + name, "Ce-" + strings.ToUpper(name[:1]) + name[1:], "ce_" + name, "cloudEvents:" + name, "cloudEvents_" + name}
}

// binaryAttribute returns also the name under which it was found, which is empty if it was not.
func binaryAttribute(metadata message.Metadata, name string) (value, found string, err error) {
	for i, spelling := range spellingsOf(name) {
		text := metadata[spelling]
		if text == "" {
			continue
		}
		if i < httpSpellings {
			text = decodeHeader(text)
		}
		text = plainAttribute(name, text)
		if found != "" && text != value {
			return "", "", fmt.Errorf("metadata %q and %q disagree about the CloudEvents attribute %q; the producer must send one", found, spelling, name)
		}
		value, found = text, spelling
	}
	return value, found, nil
}

// httpSpellings is how many of the spellings, from the first on, are those of HTTP.
const httpSpellings = 2

// decodeHeader decodes one round, if the text is encoded as a whole.
func decodeHeader(text string) string {
	encoded := func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' }
	if !strings.Contains(text, "%") || strings.ContainsFunc(text, encoded) {
		return text
	}
	decoded, err := url.PathUnescape(text)
	if err != nil || !utf8.ValidString(decoded) || strings.ContainsFunc(decoded, unicode.IsControl) {
		return text
	}
	return decoded
}

// plainAttribute decodes a URI, which may have been encoded by its sender and by somebody on the way. Other attributes
// stay: two ids that differ in their encoding are two ids.
func plainAttribute(name, text string) string {
	if name != "source" && name != "dataschema" {
		return text
	}
	const rounds = 3
	for range rounds {
		decoded := decodeHeader(text)
		if decoded == text {
			break
		}
		text = decoded
	}
	return text
}

// looksStructured tells whether the parsed document is an event that did not say so in its content type.
func (p *parser) looksStructured() bool {
	for _, name := range []string{"specversion", "id", "source", "type"} {
		m, ok := p.topMember(name)
		if !ok || p.out[m.value] != '"' {
			return false
		}
	}
	return true
}

func (p *parser) topMember(name string) (member, bool) {
	for _, m := range p.top {
		if string(p.bytes(m.name)) == name {
			return m, true
		}
	}
	return member{}, false
}

// structuredAttribute is the canonical text of an attribute (CloudEvents 1.0, section 3.1.1). Null is as good as
// none.
func (p *parser) structuredAttribute(name string) (value string, present bool, err error) {
	m, ok := p.topMember(name)
	if !ok {
		return "", false, nil
	}
	switch text := p.out[m.value:m.end]; text[0] {
	case 'n':
		return "", false, nil
	case '"':
		plain := plainAttribute(name, string(appendPlain(nil, text[1:len(text)-1])))
		return plain, plain != "", nil
	case '{', '[':
		return "", false, fmt.Errorf("CloudEvents attribute %q is an object or an array", name)
	default:
		return string(text), true, nil
	}
}
