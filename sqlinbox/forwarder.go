package sqlinbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

// ForwarderConfig configures a Forwarder.
type ForwarderConfig struct {
	// Outbox is what is forwarded. Required.
	Outbox *Outbox
	// Publisher publishes to the destination topics. It must not return before the broker has taken the message.
	// Required.
	Publisher message.Publisher

	// ConsumerGroup keeps the position in the outbox, on PostgreSQL: forwarders of one group share the work, each
	// other group forwards everything again. Default: "forwarder".
	ConsumerGroup string
	// PollInterval is how long the relay waits when the outbox is empty. Default: 100 ms.
	PollInterval time.Duration
	// ResendInterval is how long it waits after a failed publish. Default: 1 s.
	ResendInterval time.Duration
	// CloseTimeout is how long Close waits for the message that is being published. Default: 30 s.
	CloseTimeout time.Duration
	// Logger is also the logger of Watermill's forwarder. Default: watermill.NopLogger.
	Logger watermill.LoggerAdapter
}

func (c *ForwarderConfig) setDefaults() {
	if c.ConsumerGroup == "" {
		c.ConsumerGroup = "forwarder"
	}
	if c.PollInterval == 0 {
		c.PollInterval = 100 * time.Millisecond
	}
	if c.ResendInterval == 0 {
		c.ResendInterval = time.Second
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}

// Validate returns every problem of the configuration at once.
func (c ForwarderConfig) Validate() error {
	var problems []error
	if c.Outbox == nil {
		problems = append(problems, errors.New("outbox is nil; set ForwarderConfig.Outbox to what NewOutbox returns"))
	}
	if c.Publisher == nil {
		problems = append(problems, errors.New("publisher is nil; set ForwarderConfig.Publisher to the broker's"))
	}
	if c.PollInterval < 0 || c.ResendInterval < 0 || c.CloseTimeout < 0 {
		problems = append(problems, fmt.Errorf("poll interval %s, resend interval %s or close timeout %s is negative", c.PollInterval, c.ResendInterval, c.CloseTimeout))
	}
	return errors.Join(problems...)
}

// Forwarder publishes what is committed in an Outbox, in its order, at least once: one that is killed between
// publishing and marking publishes the same messages again, with the same UUIDs.
type Forwarder struct {
	config  ForwarderConfig
	relay   *forwarder.Forwarder
	forward onePublish
	parked  atomic.Int64
}

// NewForwarder returns Watermill's forwarder over an Outbox. Run it in any or all replicas; on SQLite in one process.
func NewForwarder(config ForwarderConfig) (*Forwarder, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid forwarder config: %w", err)
	}
	f := &Forwarder{config: config}
	subscriber, err := f.subscriber()
	if err != nil {
		return nil, err
	}
	f.relay, err = forwarder.NewForwarder(subscriber, config.Publisher, config.Logger, forwarder.Config{
		ForwarderTopic: outboxTopic,
		Middlewares:    []message.HandlerMiddleware{f.parkCorrupt, f.forward.middleware},
		CloseTimeout:   config.CloseTimeout,
	})
	return f, err
}

// Run forwards until Close is called or ctx is cancelled. A forwarder runs once.
func (f *Forwarder) Run(ctx context.Context) error { return f.relay.Run(ctx) }

// Running returns a channel that is closed when the forwarder has started.
func (f *Forwarder) Running() chan struct{} { return f.relay.Running() }

// Close waits for the message that is being published, at most ForwarderConfig.CloseTimeout, and ends Run.
func (f *Forwarder) Close() error { return f.relay.Close() }

// Parked is how many rows this forwarder has parked because they are no messages. They are kept in the table
// that ends in "_parked".
func (f *Forwarder) Parked() int64 { return f.parked.Load() }

func (f *Forwarder) subscriber() (message.Subscriber, error) {
	outbox := f.config.Outbox.config
	schema, ok := f.config.Outbox.schema.(postgresqlOutbox)
	if !ok {
		return &outboxSubscriber{
			db:      outbox.DB,
			table:   outbox.Table,
			poll:    f.config.PollInterval,
			resend:  f.config.ResendInterval,
			logger:  f.config.Logger,
			closing: make(chan struct{}),
		}, nil
	}
	return wmsql.NewSubscriber(outbox.DB, wmsql.SubscriberConfig{
		ConsumerGroup:  f.config.ConsumerGroup,
		PollInterval:   f.config.PollInterval,
		ResendInterval: f.config.ResendInterval,
		BackoffManager: relayBackoff{f.config, outbox.Dialect},
		SchemaAdapter:  schema,
		OffsetsAdapter: schema.offsets,
		// The subscriber logs the arguments of its statements. It gets no logger; relayBackoff logs its errors.
	}, watermill.NopLogger{})
}

// parkCorrupt puts a row aside that Watermill's forwarder could not unwrap, before it is acked: nacked, it would
// hold up every row behind it.
func (f *Forwarder) parkCorrupt(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		reason := corruptReason(msg)
		if reason == "" {
			return h(msg)
		}
		if err := f.park(msg, reason); err != nil {
			return nil, err
		}
		f.parked.Add(1)
		f.config.Logger.Error("Parked a row of the outbox that is no message", errors.New(reason), watermill.LogFields{"message_uuid": msg.UUID})
		return nil, nil
	}
}

func (f *Forwarder) park(msg *message.Message, reason string) error {
	outbox := f.config.Outbox
	kept := maps.Clone(msg.Metadata)
	offset, err := strconv.ParseInt(kept.Get(offsetKey), 10, 64)
	if err != nil {
		return fmt.Errorf("row %q of the outbox has lost its offset: %w", msg.UUID, err)
	}
	delete(kept, offsetKey)
	metadata, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	// Not in the transaction of watermill-sql's subscriber: that one may be rolled back.
	_, err = outbox.config.DB.ExecContext(context.WithoutCancel(msg.Context()), outbox.schema.park(),
		offset, msg.UUID, []byte(msg.Payload), string(metadata), reason)
	if err != nil {
		return fmt.Errorf("cannot park row %q of the outbox: %w", msg.UUID, err)
	}
	return nil
}

func corruptReason(msg *message.Message) string {
	if reason := msg.Metadata.Get(corruptKey); reason != "" {
		return reason
	}
	// The envelope of components/forwarder. What it cannot decode must be found here: it would log the payload.
	var envelope struct {
		DestinationTopic string            `json:"destination_topic"`
		UUID             string            `json:"uuid"`
		Payload          []byte            `json:"payload"`
		Metadata         map[string]string `json:"metadata"`
	}
	if err := json.Unmarshal(msg.Payload, &envelope); err != nil {
		return "its payload is not the envelope of a message"
	}
	if envelope.DestinationTopic == "" {
		return "its envelope has no destination topic"
	}
	return ""
}

// onePublish lets one message be published at a time, and not again when it was just published: watermill-sql's
// subscriber delivers a message anew after its ack deadline, also if the broker has it by then or is still taking it.
type onePublish struct {
	mu   sync.Mutex
	last string // offset of the row that was published last
}

func (p *onePublish) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		offset := msg.Metadata.Get(offsetKey)
		if p.last == offset {
			return nil, nil
		}
		produced, err := h(msg)
		if err == nil {
			p.last = offset
		}
		return produced, err
	}
}

// relayBackoff says how long watermill-sql's subscriber waits, and logs why.
type relayBackoff struct {
	config  ForwarderConfig
	dialect Dialect
}

func (b relayBackoff) HandleError(_ watermill.LoggerAdapter, noMessage bool, err error) time.Duration {
	switch {
	case err == nil && noMessage:
		return b.config.PollInterval
	case err == nil:
		return 0
	case b.dialect.classify(err) == conflict: // another forwarder of the group was first
		return b.config.PollInterval
	case !errors.Is(err, context.Canceled):
		b.config.Logger.Error("Cannot read the outbox", err, nil)
	}
	return b.config.ResendInterval
}

// cleanBatch bounds one statement of Clean.
const cleanBatch = 1000

// Clean deletes rows that were forwarded (on PostgreSQL: by every consumer group) and are older than retention, in
// batches, and returns how many. Call it now and then; without it the outbox grows for ever. It is safe to call it
// from several processes at once.
func (o *Outbox) Clean(ctx context.Context, retention time.Duration) (int64, error) {
	if retention < 0 {
		return 0, fmt.Errorf("retention %s is negative", retention)
	}
	var total int64
	for {
		result, err := o.config.DB.ExecContext(ctx, o.schema.clean(), retention.Seconds(), cleanBatch)
		if err != nil {
			return total, fmt.Errorf("cannot clean the outbox %q: %w", o.config.Table, err)
		}
		deleted, err := result.RowsAffected()
		total += deleted
		if err != nil || deleted < cleanBatch {
			return total, err
		}
	}
}
