package middleware

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

// HandlerConfig says how one handler's messages are identified and kept. The zero value is usable: the
// consumer is the handler's name, the key is the message's UUID, the hash is that of the payload as
// canonical JSON (or of its bytes, if it is not JSON), entries are kept for ever.
type HandlerConfig struct {
	// Consumer is the name under which entries are kept. It is part of every key: give it a value that
	// survives a renaming of the handler, and that no other service which shares the table uses.
	// Default: the handler's name in the router.
	Consumer string

	// Owner is the person or team to call about this consumer. Optional; for metrics and alerts.
	Owner string

	// Key identifies a message to this consumer. Default: KeyFromUUID.
	Key KeyExtractor

	// BusinessKey identifies the business action across messages with other keys. Optional. When it is
	// set, a message without it is unidentified.
	BusinessKey KeyExtractor

	// Hash makes and compares payload hashes. Default: canonical JSON of the payload, nothing left out.
	Hash *hashing.Verifier

	// EventType describes the entry. Default: the CloudEvents type, else cqrs's metadata "name".
	EventType KeyExtractor
	// Source describes the entry. Default: the CloudEvents source.
	Source KeyExtractor
	// TenantID describes the entry. Optional.
	TenantID KeyExtractor
	// ContractVersion describes the entry. Default: metadata "contract_version", else the CloudEvents
	// dataschema.
	ContractVersion KeyExtractor

	// ContractVersions are the contract versions that the handler accepts; a message with another one, or
	// with none, is poisoned. Empty: every version is accepted.
	ContractVersions []string

	// OccurredAt finds the producer's time of a message, RFC 3339. Default: the CloudEvents time.
	OccurredAt KeyExtractor

	// Retention is how long an entry is kept, by the database's clock. Zero keeps it for ever.
	Retention time.Duration

	// OnDuplicate is called for a duplicate and a semantic duplicate before it is acked, for example to
	// answer a request again from the stored result reference. An error nacks the delivery. Optional.
	OnDuplicate func(params OnDuplicateParams) error
}

// OnDuplicateParams is what HandlerConfig.OnDuplicate gets.
type OnDuplicateParams struct {
	HandlerName string
	Consumer    string
	Message     *message.Message
	// Outcome is OutcomeDuplicate or OutcomeSemanticDuplicate.
	Outcome Outcome
	// Stored is the entry that was accepted before.
	Stored StoredEntry
}

func (c *HandlerConfig) setDefaults(handlerName string) {
	if c.Consumer == "" {
		c.Consumer = handlerName
	}
	if c.Key == nil {
		c.Key = KeyFromUUID
	}
	if c.Hash == nil {
		c.Hash = defaultVerifier
	}
	if c.EventType == nil {
		c.EventType = KeyFunc(eventTypeOf)
	}
	if c.Source == nil {
		c.Source = KeyFunc(sourceOf)
	}
	if c.ContractVersion == nil {
		c.ContractVersion = defaultContractVersion
	}
}

// defaultVerifier hashes the whole payload; New without options has nothing to refuse.
var defaultVerifier = func() *hashing.Verifier {
	hasher, err := hashing.New()
	if err != nil {
		panic(err)
	}
	verifier, err := hashing.NewVerifier(hasher)
	if err != nil {
		panic(err)
	}
	return verifier
}()

var defaultContractVersion = FirstKey(KeyFromMetadata("contract_version"), KeyFunc(func(msg *message.Message) (string, error) {
	return cloudEventsAttribute(msg, "dataschema")
}))

// validate returns every problem of the configuration at once.
func (c HandlerConfig) validate() error {
	var problems []error
	if stored, err := storableKey(c.Consumer); err != nil || stored != c.Consumer {
		problems = append(problems, fmt.Errorf("consumer name %.64q must be 1 to 255 bytes of valid UTF-8 without NUL", c.Consumer))
	}
	if c.Retention < 0 {
		problems = append(problems, fmt.Errorf("retention %s is negative; zero keeps entries for ever", c.Retention))
	}
	if c.Retention > 0 && c.Retention < time.Second {
		problems = append(problems, fmt.Errorf("retention %s is below one second: entries would be gone before a redelivery comes", c.Retention))
	}
	if slices.Contains(c.ContractVersions, "") {
		problems = append(problems, errors.New("an accepted contract version is empty"))
	}
	for _, extractor := range []struct {
		field string
		isKey bool
		KeyExtractor
	}{
		{"key", true, c.Key},
		{"business key", true, c.BusinessKey},
		{"event type", false, c.EventType},
		{"source", false, c.Source},
		{"tenant", false, c.TenantID},
		{"contract version", false, c.ContractVersion},
		{"occurred at", false, c.OccurredAt},
	} {
		var err error
		if validator, ok := extractor.KeyExtractor.(interface{ Validate() error }); ok {
			err = validator.Validate()
		}
		if err == nil && extractor.isKey {
			err = identifies(extractor.KeyExtractor)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", extractor.field, err))
		}
	}
	return errors.Join(problems...)
}

// identify makes the entry of a message. Its error is of a message that can never be processed as it is;
// the entry then holds what was found so far.
func (c HandlerConfig) identify(msg *message.Message, receivedAt time.Time) (Entry, Outcome, error) {
	entry := Entry{Consumer: c.Consumer, ReceivedAt: receivedAt, Retention: c.Retention}

	key, err := extractKey(c.Key, msg)
	if err != nil {
		return entry, OutcomeUnidentified, fmt.Errorf("message key: %w", err)
	}
	entry.MessageKey = key

	if c.BusinessKey != nil {
		if entry.BusinessKey, err = extractKey(c.BusinessKey, msg); err != nil {
			return entry, OutcomeUnidentified, fmt.Errorf("business key: %w", err)
		}
	}

	for _, text := range []struct {
		field     string
		extractor KeyExtractor
		column    *string
	}{
		{"event type", c.EventType, &entry.EventType},
		{"source", c.Source, &entry.Source},
		{"tenant", c.TenantID, &entry.TenantID},
		{"contract version", c.ContractVersion, &entry.ContractVersion},
	} {
		if *text.column, err = extractText(text.extractor, msg); err != nil {
			return entry, OutcomeUnidentified, fmt.Errorf("%s: %w", text.field, err)
		}
	}

	if entry.OccurredAt, err = c.occurredAt(msg); err != nil {
		return entry, OutcomeUnidentified, fmt.Errorf("producer's time: %w", err)
	}
	if entry.PayloadHash, err = c.Hash.Hash(msg); err != nil {
		return entry, OutcomeUnidentified, fmt.Errorf("payload hash: %w", err)
	}
	if len(c.ContractVersions) > 0 && !slices.Contains(c.ContractVersions, entry.ContractVersion) {
		return entry, OutcomeUnsupportedContract, fmt.Errorf("contract version %q is none of %q", entry.ContractVersion, c.ContractVersions)
	}
	return entry, "", nil
}

func (c HandlerConfig) occurredAt(msg *message.Message) (time.Time, error) {
	if c.OccurredAt == nil {
		return occurredAtOf(msg)
	}
	text, err := extractText(c.OccurredAt, msg)
	if err != nil || text == "" {
		return time.Time{}, err
	}
	occurredAt, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, errors.New("what OccurredAt found is not a time in RFC 3339") // without the text: it is the message's
	}
	return occurredAt, nil
}

func extractKey(extractor KeyExtractor, msg *message.Message) (string, error) {
	key, err := extractor.ExtractKey(msg)
	if err != nil {
		return "", err
	}
	return storableKey(key)
}

// extractText is for columns that describe an entry: to have none is not an error.
func extractText(extractor KeyExtractor, msg *message.Message) (string, error) {
	if extractor == nil {
		return "", nil
	}
	text, err := extractor.ExtractKey(msg)
	if errors.Is(err, ErrNoKey) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return storableText(text), nil
}
