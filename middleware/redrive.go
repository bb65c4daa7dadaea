package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// RedriveAction is what Redrive does with the messages that it selects.
type RedriveAction string

const (
	// RedriveRepublish publishes the message to its original topic again, with its identity kept.
	RedriveRepublish RedriveAction = "redrive"
	// RedriveAcceptAsNew publishes the message to its original topic after RedriveConfig.Change has given it
	// another identity: an operator's word that it is not a repetition.
	RedriveAcceptAsNew RedriveAction = "accept_as_new"
	// RedriveDiscard takes the message off the poison topic for good.
	RedriveDiscard RedriveAction = "discard"
)

// RedriveConfig configures Redrive.
type RedriveConfig struct {
	// Subscriber delivers the poison topic. Required. With a broker that keeps one position for each
	// consumer group, use one group for every redrive.
	Subscriber  message.Subscriber
	PoisonTopic string

	// Publisher publishes to the original topics and back to the poison topic. It must not return before the
	// broker has taken the message. Required.
	Publisher message.Publisher

	// Action is what happens to selected messages. Default: RedriveRepublish.
	Action RedriveAction
	// Operator and Reason say who redrives and why. Required; they go into each message's history.
	Operator string
	Reason   string

	// Filter selects messages. The zero value selects all.
	Filter RedriveFilter
	// Limit ends the run after so many selected messages. Zero: no limit.
	Limit int
	// DryRun reports what would be done, and leaves every message in the poison topic.
	DryRun bool

	// Change gives a message its new identity, for example another UUID. Required for RedriveAcceptAsNew,
	// refused otherwise.
	Change func(msg *message.Message) error

	// Record keeps what an operator did, before it is done; an error leaves the message where it is.
	// Required for RedriveAcceptAsNew and RedriveDiscard, optional for RedriveRepublish.
	Record func(ctx context.Context, record RedriveRecord) error

	// Idle ends the run when no message came for so long. Default: 5 s.
	Idle time.Duration

	// Logger gets one line for each selected message. Default: watermill.NopLogger.
	Logger watermill.LoggerAdapter
}

// RedriveFilter selects poisoned messages. Each field that is set must fit.
type RedriveFilter struct {
	Consumer   string
	MessageKey string
	// Outcome is the outcome for which the message was poisoned. A message that Watermill's own PoisonQueue
	// published, after its handler had failed, has none: select it with OutcomeError.
	Outcome Outcome
	// ReasonContains is a part of the reason for which the message was poisoned.
	ReasonContains string
	// PoisonedFrom and PoisonedBefore limit the time of poisoning. A message without that time fits neither.
	PoisonedFrom   time.Time
	PoisonedBefore time.Time
}

// RedriveRecord is one message that an operator redrove, accepted as new or discarded.
type RedriveRecord struct {
	Action      RedriveAction
	Operator    string
	Reason      string
	At          time.Time
	Topic       string
	Consumer    string
	MessageUUID string
	MessageKey  string
	PayloadHash string
	Outcome     Outcome
}

// RedriveReport counts what a run of Redrive did, or would have done in a dry run.
type RedriveReport struct {
	// Selected messages were acted on; Kept ones did not fit the filter and are in the poison topic still.
	Selected int
	Kept     int
	Records  []RedriveRecord
}

func (c *RedriveConfig) setDefaults() {
	if c.Action == "" {
		c.Action = RedriveRepublish
	}
	if c.Idle == 0 {
		c.Idle = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}

// Validate returns every problem of the configuration at once.
func (c RedriveConfig) Validate() error {
	var problems []error
	for _, required := range []struct {
		field   string
		missing bool
	}{
		{"Subscriber", c.Subscriber == nil},
		{"PoisonTopic", c.PoisonTopic == ""},
		{"Publisher", c.Publisher == nil},
		{"Operator", c.Operator == ""},
		{"Reason", c.Reason == ""},
		{"Change (an accepted message needs another identity)", c.Action == RedriveAcceptAsNew && c.Change == nil},
		{"Record (who did it and why must be kept)", c.Action != RedriveRepublish && c.Record == nil},
	} {
		if required.missing {
			problems = append(problems, fmt.Errorf("RedriveConfig.%s is not set", required.field))
		}
	}
	if !slices.Contains([]RedriveAction{RedriveRepublish, RedriveAcceptAsNew, RedriveDiscard}, c.Action) {
		problems = append(problems, fmt.Errorf("unknown action %q", c.Action))
	}
	if c.Action != RedriveAcceptAsNew && c.Change != nil {
		problems = append(problems, fmt.Errorf("RedriveConfig.Change is set, but action %q keeps the identity", c.Action))
	}
	if c.Limit < 0 || c.Idle < 0 {
		problems = append(problems, fmt.Errorf("limit %d or idle time %s is negative", c.Limit, c.Idle))
	}
	return errors.Join(problems...)
}

// Redrive takes messages off a poison topic and publishes those that the filter selects to their original
// topics again. It returns when every message was seen once, when the limit is reached, when no message came
// for the idle time, or when ctx is done.
//
// A message leaves the poison topic only after the broker has taken it elsewhere: a run that is killed
// leaves at most a second copy with the same identity, and so do two runs at once. The inbox makes one
// effect of the two. Messages that are not selected go to the end of the poison topic.
//
// What was accepted in the meantime comes out as a duplicate; a collision that is redriven unchanged comes
// back to the poison topic.
func Redrive(ctx context.Context, config RedriveConfig) (RedriveReport, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return RedriveReport{}, fmt.Errorf("invalid redrive config: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages, err := config.Subscriber.Subscribe(ctx, config.PoisonTopic)
	if err != nil {
		return RedriveReport{}, fmt.Errorf("cannot subscribe to the poison topic %q: %w", config.PoisonTopic, err)
	}

	run := redriveRun{config: config, id: watermill.NewShortUUID()}
	idle := time.NewTimer(config.Idle)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return run.report, ctx.Err()
		case <-idle.C:
			return run.report, nil
		case msg, ok := <-messages:
			if !ok {
				return run.report, ctx.Err()
			}
			done, err := run.take(ctx, msg)
			if done || err != nil {
				msg.Nack()
				return run.report, err
			}
			msg.Ack()
			if config.Limit > 0 && run.report.Selected >= config.Limit {
				return run.report, nil
			}
			idle.Reset(config.Idle)
		}
	}
}

type redriveRun struct {
	config RedriveConfig
	id     string
	report RedriveReport
}

// take moves one message. It reports done when it meets a message again: everything that was in the poison
// topic before has been seen then, for what comes back goes to its end.
func (r *redriveRun) take(ctx context.Context, msg *message.Message) (done bool, err error) {
	if seenByRun(msg, r.id) {
		return true, nil
	}
	record := r.record(msg)
	if !r.config.Filter.selects(msg, record) {
		r.report.Kept++
		return false, r.putBack(msg)
	}
	if r.config.DryRun {
		r.count(record)
		return false, r.putBack(msg)
	}
	if record.Topic == "" && r.config.Action != RedriveDiscard {
		return false, fmt.Errorf("message %q has no metadata %q, so its original topic is not known; discard it, or publish it by hand", msg.UUID, wmmiddleware.PoisonedTopicKey)
	}
	if r.config.Record != nil {
		if err := r.config.Record(ctx, record); err != nil {
			return false, fmt.Errorf("cannot record what happens to message %q: %w", msg.UUID, err)
		}
	}
	if r.config.Action != RedriveDiscard {
		if err := r.publish(msg, record); err != nil {
			return false, err
		}
	}
	r.count(record)
	r.config.Logger.Info("Redrive took a message off the poison topic", watermill.LogFields{
		"action": string(record.Action), "operator": record.Operator, "reason": record.Reason,
		"consumer": record.Consumer, "message_uuid": record.MessageUUID, "message_key": record.MessageKey,
	})
	return false, nil
}

func (r *redriveRun) publish(msg *message.Message, record RedriveRecord) error {
	// The mark stays: a collision that comes back must end this run and not go round in it.
	redriven := markSeen(withoutPoison(msg, record), r.id)
	if r.config.Action == RedriveAcceptAsNew {
		if err := r.config.Change(redriven); err != nil {
			return fmt.Errorf("cannot give message %q a new identity: %w", msg.UUID, err)
		}
	}
	if err := r.config.Publisher.Publish(record.Topic, redriven); err != nil {
		return fmt.Errorf("cannot publish message %q to its topic %q: %w", msg.UUID, record.Topic, err)
	}
	return nil
}

func (r *redriveRun) putBack(msg *message.Message) error {
	if err := r.config.Publisher.Publish(r.config.PoisonTopic, markSeen(msg, r.id)); err != nil {
		return fmt.Errorf("cannot put message %q back into the poison topic %q: %w", msg.UUID, r.config.PoisonTopic, err)
	}
	return nil
}

func (r *redriveRun) count(record RedriveRecord) {
	r.report.Selected++
	r.report.Records = append(r.report.Records, record)
}

func (r *redriveRun) record(msg *message.Message) RedriveRecord {
	outcome := Outcome(msg.Metadata.Get(PoisonOutcomeKey))
	if outcome == "" {
		outcome = OutcomeError
	}
	consumer := msg.Metadata.Get(PoisonConsumerKey)
	if consumer == "" {
		consumer = msg.Metadata.Get(wmmiddleware.PoisonedHandlerKey)
	}
	return RedriveRecord{
		Action:      r.config.Action,
		Operator:    r.config.Operator,
		Reason:      r.config.Reason,
		At:          time.Now().UTC(),
		Topic:       msg.Metadata.Get(wmmiddleware.PoisonedTopicKey),
		Consumer:    consumer,
		MessageUUID: msg.UUID,
		MessageKey:  msg.Metadata.Get(PoisonMessageKeyKey),
		PayloadHash: msg.Metadata.Get(PoisonPayloadHashKey),
		Outcome:     outcome,
	}
}

func (f RedriveFilter) selects(msg *message.Message, record RedriveRecord) bool {
	if f.Consumer != "" && f.Consumer != record.Consumer ||
		f.MessageKey != "" && f.MessageKey != record.MessageKey ||
		f.Outcome != "" && f.Outcome != record.Outcome ||
		!strings.Contains(msg.Metadata.Get(wmmiddleware.ReasonForPoisonedKey), f.ReasonContains) {
		return false
	}
	if f.PoisonedFrom.IsZero() && f.PoisonedBefore.IsZero() {
		return true
	}
	poisonedAt, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get(PoisonedAtKey))
	return err == nil && !poisonedAt.Before(f.PoisonedFrom) &&
		(f.PoisonedBefore.IsZero() || poisonedAt.Before(f.PoisonedBefore))
}
