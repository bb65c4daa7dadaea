package hashing

import (
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// defaultAttributes are those that say what an event is about (CloudEvents 1.0, section 3).
var defaultAttributes = []string{"dataschema", "source", "subject", "type"}

const structuredMediaType = "application/cloudevents+json"

// writeEvent writes an event, or reports that the message is none.
func (h *Hasher) writeEvent(c *content, msg *message.Message, classAt int) (isEvent bool, err error) {
	declared := isStructured(msg.Metadata)
	binary := isBinary(msg.Metadata)
	if declared || !binary {
		err := c.parse(msg.Payload, h.patterns, true)
		if err != nil && declared {
			return false, fmt.Errorf("structured CloudEvent: %w", err)
		}
		if declared || err == nil && c.looksStructured() {
			return true, h.writeStructured(c, classAt)
		}
		return false, nil
	}
	return true, h.writeBinary(c, msg, classAt)
}

// eventAttributes are the attributes that count, in their order.
func (c *config) eventAttributes() []string {
	names := append(slices.Clone(defaultAttributes), c.attributes...)
	slices.Sort(names)
	return slices.Compact(names)
}

func isStructured(metadata message.Metadata) bool {
	mediaType, _, err := mime.ParseMediaType(contentType(metadata))
	return err == nil && mediaType == structuredMediaType
}

// contentType reads the spellings that brokers and bridges use.
func contentType(metadata message.Metadata) string {
	for _, name := range []string{"content-type", "Content-Type", "content_type", "contentType", "ContentType"} {
		if value := metadata[name]; value != "" {
			return value
		}
	}
	return ""
}

func isBinary(metadata message.Metadata) bool {
	for _, name := range []string{"specversion", "id", "source", "type"} {
		for _, prefix := range attributePrefixes {
			if _, ok := metadata[prefix.spell(name)]; ok {
				return true
			}
		}
	}
	return false
}

// attributePrefix is how a binding spells attributes in binary mode. The HTTP binding, section 3.1.3.2,
// percent-encodes values.
type attributePrefix struct {
	text    string
	percent bool
	title   bool
}

var attributePrefixes = []attributePrefix{
	{text: "ce-", percent: true}, {text: "Ce-", percent: true, title: true},
	{text: "ce_"}, {text: "cloudEvents:"}, {text: "cloudEvents_"},
}

func (p attributePrefix) spell(name string) string {
	if p.title {
		name = strings.ToUpper(name[:1]) + name[1:]
	}
	return p.text + name
}

func binaryAttribute(metadata message.Metadata, name string) (value string, present bool, err error) {
	for _, prefix := range attributePrefixes {
		text, ok := metadata[prefix.spell(name)]
		if !ok {
			continue
		}
		if prefix.percent {
			if text, err = url.PathUnescape(text); err != nil {
				return "", false, fmt.Errorf("CloudEvents attribute %q is not percent-encoded as its spelling %q requires", name, prefix.spell(name))
			}
		}
		if present && text != value {
			return "", false, fmt.Errorf("spellings of CloudEvents attribute %q disagree; the producer must send one", name)
		}
		value, present = text, true
	}
	return value, present, nil
}

func (h *Hasher) writeBinary(c *content, msg *message.Message, classAt int) error {
	c.begin(classCloudEvent, classAt)
	for _, name := range h.attributes {
		value, present, err := binaryAttribute(msg.Metadata, name)
		if err != nil {
			return err
		}
		c.attribute(name, value, present)
	}
	mediaType, present, err := binaryAttribute(msg.Metadata, "datacontenttype")
	if err != nil {
		return err
	}
	if !present {
		mediaType = contentType(msg.Metadata)
	}
	if len(msg.Payload) == 0 {
		c.part("no data")
		return nil
	}
	return h.writeData(c, msg.Payload, mediaType)
}

// attribute writes one; an empty one is as good as none (CloudEvents attributes are non-empty).
func (c *content) attribute(name, value string, present bool) {
	if name == "time" && present {
		if t, err := time.Parse(time.RFC3339, value); err == nil {
			value = t.UTC().Format(time.RFC3339Nano)
		}
	}
	c.named("attribute", name, value, present && value != "")
}

// writeData writes data that came as bytes.
func (h *Hasher) writeData(c *content, data []byte, mediaType string) error {
	if isJSON(mediaType) {
		err := c.parse(data, h.patterns, false)
		if err == nil {
			c.part("json data")
			c.canonicalPart(0, uint32(len(c.out)))
			return nil
		}
		if h.config.strict {
			return fmt.Errorf("data of a CloudEvent: %w", err)
		}
	}
	c.part("data")
	c.part(canonicalMediaType(mediaType))
	c.bytesPart(data)
	return nil
}

func isJSON(mediaType string) bool {
	if mediaType == "" {
		return true
	}
	base, _, err := mime.ParseMediaType(mediaType)
	return err == nil && (base == "application/json" || base == "text/json" || strings.HasSuffix(base, "+json"))
}

func canonicalMediaType(mediaType string) string {
	base, parameters, err := mime.ParseMediaType(mediaType)
	if err != nil {
		return mediaType
	}
	return mime.FormatMediaType(base, parameters)
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

func (h *Hasher) writeStructured(c *content, classAt int) error {
	c.begin(classCloudEvent, classAt)
	if len(c.out) == 0 || c.out[0] != '{' {
		return errors.New("structured CloudEvent is not a JSON object")
	}
	for _, name := range h.attributes {
		value, present, err := c.structuredAttribute(name)
		if err != nil {
			return err
		}
		c.attribute(name, value, present)
	}
	mediaType, _, err := c.structuredAttribute("datacontenttype")
	if err != nil {
		return err
	}
	data, hasData := c.topMember("data")
	encoded, hasEncoded := c.topMember("data_base64")
	switch {
	case hasData && hasEncoded:
		return errors.New("structured CloudEvent has both data and data_base64")
	case hasEncoded:
		return h.writeEncoded(c, encoded, mediaType)
	case !hasData:
		c.part("no data")
		return nil
	case !isJSON(mediaType) && c.out[data.value] == '"':
		// The text of the string is the data (JSON event format, section 3.1.1).
		text := appendPlain(nil, c.out[data.value+1:data.end-1])
		return h.writeData(c, text, mediaType)
	default:
		c.part("json data")
		c.canonicalPart(data.value, data.end)
		return nil
	}
}

func (h *Hasher) writeEncoded(c *content, encoded member, mediaType string) error {
	if c.out[encoded.value] != '"' {
		return errors.New("data_base64 of a structured CloudEvent is not a string")
	}
	text := appendPlain(nil, c.out[encoded.value+1:encoded.end-1])
	data, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil {
		return errors.New("data_base64 of a structured CloudEvent is not base64")
	}
	return h.writeData(c, data, mediaType)
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
		return string(appendPlain(nil, text[1:len(text)-1])), true, nil
	case '{', '[':
		return "", false, fmt.Errorf("CloudEvents attribute %q is an object or an array", name)
	default:
		return string(text), true, nil
	}
}
