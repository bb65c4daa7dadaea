package hashing

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Hasher makes the stored text of a message's content. It is safe for concurrent use.
type Hasher struct {
	config     config
	patterns   *pattern
	attributes []string // of a CloudEvent that count
	scheme     string
	prefixes   map[string]string // of the stored text, by class
	pool       *sync.Pool
}

const (
	classJSON       = "j"
	classBytes      = "b"
	classCloudEvent = "e"
)

// New returns a Hasher, or an error with every problem of the options. Without options the whole payload counts
// and nothing else.
func New(options ...Option) (*Hasher, error) {
	h := &Hasher{}
	var problems []error
	for _, option := range options {
		problems = append(problems, option(&h.config))
	}
	problems = append(problems, h.config.check())
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("invalid hashing options: %w", err)
	}
	slices.Sort(h.config.metadata)
	h.patterns = newPattern(h.config.exclude)
	h.attributes = h.config.eventAttributes()
	h.scheme = h.config.scheme()
	h.prefixes = map[string]string{}
	for _, class := range []string{classJSON, classBytes, classCloudEvent, h.config.contentName} {
		h.prefixes[class] = version + ":" + class + ":" + h.config.algorithm() + ":" + h.scheme + ":"
	}
	h.pool = &sync.Pool{New: func() any {
		c := &content{parser: parser{numbers: h.config.numbers}}
		if h.config.keyID != "" {
			c.mac = hmac.New(sha256.New, h.config.secret)
		}
		return c
	}}
	return h, nil
}

// Hash returns the stored text of msg's content. It has the signature of Watermill's MessageHasher. It neither
// keeps nor changes the message.
//
// It returns a NotStrictJSONError with Strict, an error for a message that says it is a CloudEvent and is not a
// valid one, and the error of a Content function. Without these options it returns no error.
func (h *Hasher) Hash(msg *message.Message) (string, error) {
	c := h.pool.Get().(*content)
	defer h.release(c)
	if err := h.write(c, msg); err != nil {
		return "", err
	}

	var sum [sha256.Size]byte
	if h.config.keyID == "" {
		sum = sha256.Sum256(c.text)
	} else {
		c.mac.Reset()
		c.mac.Write(c.text)
		c.mac.Sum(sum[:0])
	}
	var stored [100]byte
	text := append(stored[:0], h.prefixes[c.class]...)
	text = base64.RawURLEncoding.AppendEncode(text, sum[:])
	return string(text), nil
}

// content is what is hashed of one message.
type content struct {
	parser
	mac   hash.Hash // of a keyed Hasher
	class string
	text  []byte // length-prefixed parts
	// payload is where the canonical payload or data is in text, for Explain and Diff.
	payload [2]int
}

// maxPooled is the largest memory, in bytes, that is kept for the next message.
const maxPooled = 16 << 20

func (h *Hasher) release(c *content) {
	const memberSize = 40
	size := cap(c.text) + cap(c.out) + cap(c.own) + memberSize*(cap(c.members)+cap(c.kept)+cap(c.order)+cap(c.reorders)+cap(c.top))
	if size > maxPooled {
		return
	}
	c.source = nil
	h.pool.Put(c)
}

// domain keeps these digests apart from those of anything else, and those of a later form from these.
const domain = "watermill-inbox content hash v1"

// write writes all that is hashed of msg.
func (h *Hasher) write(c *content, msg *message.Message) error {
	c.text = c.text[:0]
	c.part(domain)
	classAt := len(c.text)
	if err := h.writePayload(c, msg, classAt); err != nil {
		return err
	}
	for _, name := range h.config.metadata {
		value, present := msg.Metadata[name]
		c.named("metadata", name, value, present)
	}
	return nil
}

func (h *Hasher) writePayload(c *content, msg *message.Message, classAt int) error {
	switch {
	case h.config.content != nil:
		extracted, err := h.config.content(msg)
		if err != nil {
			return fmt.Errorf("content %q: %w", h.config.contentName, err)
		}
		c.begin(h.config.contentName, classAt)
		c.bytesPart(extracted)
		return nil
	case h.config.cloudEvents:
		isEvent, err := h.writeEvent(c, msg, classAt)
		if isEvent || err != nil {
			return err
		}
	}

	if err := c.parse(msg.Payload, h.patterns, false); err != nil {
		if h.config.strict {
			return err
		}
		c.begin(classBytes, classAt)
		c.bytesPart(msg.Payload)
		return nil
	}
	c.begin(classJSON, classAt)
	c.canonicalPart(0, uint32(len(c.out)))
	return nil
}

// begin starts the content, again if another class was tried before.
func (c *content) begin(class string, classAt int) {
	c.class = class
	c.text = c.text[:classAt]
	c.part(class)
}

func (c *content) length(n int) {
	c.text = binary.BigEndian.AppendUint64(c.text, uint64(n))
}

func (c *content) part(text string) {
	c.length(len(text))
	c.text = append(c.text, text...)
}

func (c *content) bytesPart(text []byte) {
	c.length(len(text))
	c.payload[0] = len(c.text)
	c.text = append(c.text, text...)
	c.payload[1] = len(c.text)
}

// canonicalPart writes a value of the parsed document; its length is known only afterwards.
func (c *content) canonicalPart(start, end uint32) {
	at := len(c.text)
	c.length(0)
	c.payload[0] = len(c.text)
	c.text = c.appendValue(c.text, start, end)
	c.payload[1] = len(c.text)
	binary.BigEndian.PutUint64(c.text[at:], uint64(c.payload[1]-c.payload[0]))
}

// named writes a part that may be absent, which is different from being empty.
func (c *content) named(kind, name, value string, present bool) {
	c.part(kind)
	c.part(name)
	if !present {
		c.part("absent")
		return
	}
	c.part("present")
	c.part(value)
}
