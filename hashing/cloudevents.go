package hashing

import (
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// defaultAttributes are those that say what an event is about (CloudEvents 1.0, section 3).
var defaultAttributes = []string{"dataschema", "source", "subject", "type"}

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

func (h *Hasher) writeBinary(c *content, msg *message.Message, classAt int) error {
	c.begin(classCloudEvent, classAt)
	for _, name := range h.attributes {
		value, found, err := binaryAttribute(msg.Metadata, name)
		if err != nil {
			return err
		}
		c.attribute(name, value, found != "")
	}
	mediaType, found, err := binaryAttribute(msg.Metadata, "datacontenttype")
	if err != nil {
		return err
	}
	if found == "" {
		mediaType = contentType(msg.Metadata)
	}
	if len(msg.Payload) == 0 {
		c.part("no data")
		return nil
	}
	return h.writeData(c, msg.Payload, mediaType)
}

// attribute writes one that counts.
func (c *content) attribute(name, value string, present bool) {
	if name == "time" && present {
		if t, err := time.Parse(time.RFC3339, value); err == nil {
			value = t.UTC().Format(time.RFC3339Nano)
		}
	}
	c.named("attribute", name, value, present)
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
