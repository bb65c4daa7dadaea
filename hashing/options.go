package hashing

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Option configures a Hasher. The order of options does not matter.
type Option func(*config) error

// NumberMode says how numbers are compared.
type NumberMode int

const (
	// Exact compares numbers as decimals. The default.
	Exact NumberMode = iota
	// Float64 rounds numbers to a float64 first, as RFC 8785 does.
	Float64
)

// config is what a scheme stands for.
type config struct {
	exclude     [][]*string
	excludeText []string
	metadata    []string
	numbers     NumberMode
	strict      bool
	cloudEvents bool
	attributes  []string
	contentName string
	content     func(msg *message.Message) ([]byte, error)
	keyID       string
	secret      []byte
}

// Exclude leaves parts of a JSON payload out of the hash, for example a time of sending that changes with each
// publish. A pattern is an RFC 6901 pointer in which a whole token * stands for any member or element; a
// member that is named * is written ~2. With CloudEvents patterns begin at the event's data.
func Exclude(patterns ...string) Option {
	return func(c *config) error {
		var problems []error
		for _, text := range patterns {
			tokens, err := parsePattern(text)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			c.exclude = append(c.exclude, tokens)
			c.excludeText = append(c.excludeText, text)
		}
		return errors.Join(problems...)
	}
}

// Metadata makes the listed metadata count.
func Metadata(names ...string) Option {
	return func(c *config) error {
		for _, name := range names {
			if name == "" {
				return errors.New("a metadata name is empty")
			}
			if !slices.Contains(c.metadata, name) {
				c.metadata = append(c.metadata, name)
			}
		}
		return nil
	}
}

// Numbers says how numbers are compared. Use Float64 only for a pipeline that is known to round.
func Numbers(mode NumberMode) Option {
	return func(c *config) error {
		if mode != Exact && mode != Float64 {
			return fmt.Errorf("unknown number mode %d", mode)
		}
		c.numbers = mode
		return nil
	}
}

// Strict makes Hash return a NotStrictJSONError for a payload that is not strict JSON, instead of hashing
// its bytes.
func Strict() Option {
	return func(c *config) error {
		c.strict = true
		return nil
	}
}

// CloudEvents hashes an event and not its encoding: the structured and the binary mode of one event are equal.
// Type, source, subject, dataschema and the data count; of the other attributes only those that are listed
// (without a prefix), so not id, which is the key, specversion, time and extensions. A listed time counts as
// an instant.
//
// Attributes are found as EventAttribute finds them. Data is JSON if its media type says so or is
// missing; otherwise its bytes and its media type count. A message that is no CloudEvent is hashed as without
// this option; one that says it is, but is not a valid one, is an error.
func CloudEvents(attributes ...string) Option {
	return func(c *config) error {
		c.cloudEvents = true
		for _, name := range attributes {
			if !attributeName.MatchString(name) {
				return fmt.Errorf("%q is no CloudEvents attribute: lower-case letters and digits only", name)
			}
			if name == "data" || name == "data_base64" || name == "datacontenttype" {
				return fmt.Errorf("%q counts with the data and is not listed", name)
			}
			if !slices.Contains(c.attributes, name) {
				c.attributes = append(c.attributes, name)
			}
		}
		return nil
	}
}

var attributeName = regexp.MustCompile(`^[a-z0-9]{1,40}$`)

// Content hashes what extract makes of a message instead of its payload, for a format in which one content has
// several encodings. The name stands for the function and its version in the stored text: give a function that
// answers differently another name. It has at most 12 letters, digits, points and dashes.
func Content(name string, extract func(msg *message.Message) ([]byte, error)) Option {
	return func(c *config) error {
		if !contentName.MatchString(name) || len(name) == 1 {
			return fmt.Errorf("content name %.64q must have 2 to 12 letters, digits, points and dashes", name)
		}
		if extract == nil {
			return fmt.Errorf("content %q has no function", name)
		}
		if c.content != nil {
			return fmt.Errorf("content is given twice, as %q and %q", c.contentName, name)
		}
		c.contentName, c.content = name, extract
		return nil
	}
}

var contentName = regexp.MustCompile(`^[A-Za-z0-9.-]{2,12}$`)

// Keyed makes the digest an HMAC-SHA-256 (RFC 2104), so that a payload with little in it cannot be found out by
// trying. The id names the key in the stored text; it has at most 16 letters, digits, underscores and dashes.
// The secret has at least 32 bytes and is copied. It is no part of the scheme.
func Keyed(id string, secret []byte) Option {
	return func(c *config) error {
		if !keyID.MatchString(id) {
			return fmt.Errorf("key id %.64q must have 1 to 16 letters, digits, underscores and dashes", id)
		}
		if len(secret) < 32 {
			return fmt.Errorf("secret of key %q has %d bytes, fewer than 32; make one with crypto/rand", id, len(secret))
		}
		if c.keyID != "" {
			return fmt.Errorf("two keys, %q and %q; give the older one to NewVerifier in a retired hasher", c.keyID, id)
		}
		c.keyID, c.secret = id, slices.Clone(secret)
		return nil
	}
}

var keyID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,16}$`)

// check returns the problems that only options together have.
func (c *config) check() error {
	if c.content == nil {
		return nil
	}
	var problems []error
	if len(c.exclude) > 0 {
		problems = append(problems, fmt.Errorf("Exclude has no effect on Content %q; leave the parts out in its function", c.contentName))
	}
	if c.cloudEvents {
		problems = append(problems, fmt.Errorf("CloudEvents and Content %q exclude each other", c.contentName))
	}
	if c.strict || c.numbers != Exact {
		problems = append(problems, fmt.Errorf("Strict and Numbers have no effect on Content %q", c.contentName))
	}
	return errors.Join(problems...)
}
