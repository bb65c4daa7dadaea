package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// queues is a broker of FIFO queues: what is nacked goes to the front again.
type queues struct {
	mu      sync.Mutex
	byTopic map[string][]*message.Message
	changed chan struct{}

	publishErr func(topic string) error
}

func newQueues() *queues {
	return &queues{byTopic: map[string][]*message.Message{}, changed: make(chan struct{}, 1)}
}

func (q *queues) Publish(topic string, messages ...*message.Message) error {
	if q.publishErr != nil {
		if err := q.publishErr(topic); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, msg := range messages {
		q.byTopic[topic] = append(q.byTopic[topic], msg.Copy())
	}
	q.signal()
	return nil
}

func (q *queues) signal() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

func (q *queues) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			msg := q.pop(ctx, topic)
			if msg == nil {
				return
			}
			delivery := msg.Copy()
			select {
			case out <- delivery:
			case <-ctx.Done():
				q.giveBack(topic, msg)
				return
			}
			select {
			case <-delivery.Acked():
			case <-delivery.Nacked():
				q.giveBack(topic, msg)
			}
		}
	}()
	return out, nil
}

func (q *queues) pop(ctx context.Context, topic string) *message.Message {
	for {
		q.mu.Lock()
		if waiting := q.byTopic[topic]; len(waiting) > 0 {
			q.byTopic[topic] = waiting[1:]
			q.signal()
			q.mu.Unlock()
			return waiting[0]
		}
		q.mu.Unlock()
		select {
		case <-q.changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (q *queues) giveBack(topic string, msg *message.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.byTopic[topic] = append([]*message.Message{msg}, q.byTopic[topic]...)
	q.signal()
}

func (q *queues) Close() error { return nil }

func (q *queues) in(topic string) []*message.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]*message.Message{}, q.byTopic[topic]...)
}

func (q *queues) requireUUIDs(t *testing.T, topic string, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(q.in(topic)) == len(want) }, 10*time.Second, time.Millisecond,
		"messages in %s", topic)
	var got []string
	for _, msg := range q.in(topic) {
		got = append(got, msg.UUID)
	}
	require.ElementsMatch(t, want, got)
}

func poisoned(uuid, consumer string, outcome middleware.Outcome) *message.Message {
	msg := message.NewMessage(uuid, []byte(`{"id":"`+uuid+`"}`))
	msg.Metadata.Set("tenant", "acme")
	msg.Metadata.Set(wmmiddleware.PoisonedTopicKey, "orders")
	msg.Metadata.Set(wmmiddleware.PoisonedHandlerKey, consumer)
	msg.Metadata.Set(wmmiddleware.ReasonForPoisonedKey, "because of "+string(outcome))
	msg.Metadata.Set(middleware.PoisonOutcomeKey, string(outcome))
	msg.Metadata.Set(middleware.PoisonConsumerKey, consumer)
	msg.Metadata.Set(middleware.PoisonMessageKeyKey, uuid)
	msg.Metadata.Set(middleware.PoisonedAtKey, time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).Format(time.RFC3339Nano))
	return msg
}

func redriveConfig(broker *queues, change ...func(*middleware.RedriveConfig)) middleware.RedriveConfig {
	config := middleware.RedriveConfig{
		Subscriber:  broker,
		Publisher:   broker,
		PoisonTopic: "poison",
		Operator:    "ann",
		Reason:      "the handler is mended",
		Idle:        200 * time.Millisecond,
	}
	for _, c := range change {
		c(&config)
	}
	return config
}

func TestRedriveKeepsIdentityPayloadAndMetadata(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	require.NoError(t, broker.Publish("poison", poisoned("1", "billing", middleware.OutcomeCollision)))

	report, err := middleware.Redrive(t.Context(), redriveConfig(broker))
	require.NoError(t, err)
	require.Equal(t, 1, report.Selected)
	broker.requireUUIDs(t, "poison")
	broker.requireUUIDs(t, "orders", "1")

	redriven := broker.in("orders")[0]
	require.JSONEq(t, `{"id":"1"}`, string(redriven.Payload))
	require.Equal(t, "acme", redriven.Metadata.Get("tenant"))
	require.Equal(t, "1", redriven.Metadata.Get(middleware.RedrivenKey))
	for _, gone := range []string{
		wmmiddleware.PoisonedTopicKey, wmmiddleware.PoisonedHandlerKey, wmmiddleware.ReasonForPoisonedKey,
		middleware.PoisonOutcomeKey, middleware.PoisonConsumerKey, middleware.PoisonMessageKeyKey, middleware.PoisonedAtKey,
	} {
		require.NotContains(t, redriven.Metadata, gone)
	}
	history := redriven.Metadata.Get(middleware.RedriveHistoryKey)
	for _, fact := range []string{"ann", "the handler is mended", "collision", "billing", "because of collision"} {
		require.Contains(t, history, fact)
	}
}

func TestRedriveHistoryDoesNotGrowWithoutBound(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	msg := poisoned("1", "billing", middleware.OutcomeCollision)
	msg.Metadata.Set(wmmiddleware.ReasonForPoisonedKey, strings.Repeat("long ", 10_000))
	size := 0
	for round := range 20 {
		require.NoError(t, broker.Publish("poison", msg))
		_, err := middleware.Redrive(t.Context(), redriveConfig(broker, func(c *middleware.RedriveConfig) { c.Limit = 1 }))
		require.NoError(t, err)
		msg = broker.pop(t.Context(), "orders")
		require.Equal(t, strconv.Itoa(round+1), msg.Metadata.Get(middleware.RedrivenKey))

		text := 0
		for name, value := range msg.Metadata {
			text += len(name) + len(value)
		}
		if round == 10 {
			size = text
		}
		if round > 10 {
			// Times in it have up to nine digits behind the point.
			require.LessOrEqual(t, text, size+100, "metadata after redrive %d", round)
		}
		for name, value := range poisoned("1", "billing", middleware.OutcomeCollision).Metadata {
			msg.Metadata.Set(name, value)
		}
	}
}

func TestRedriveDropsAHistoryThatItCannotHaveWritten(t *testing.T) {
	t.Parallel()
	for reason, forged := range map[string]string{
		"not JSON":   "{",
		"other JSON": `{"at":1}`,
		"too long":   `[{"by":"` + strings.Repeat("x", 20<<10) + `"}]`,
		"many":       "[" + strings.Repeat(`{"by":"mallory"},`, 500) + `{"by":"mallory"}]`,
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			broker := newQueues()
			msg := poisoned("1", "billing", middleware.OutcomeLate)
			msg.Metadata.Set(middleware.RedriveHistoryKey, forged)
			msg.Metadata.Set(middleware.RedrivenKey, "99999999999999999999")
			require.NoError(t, broker.Publish("poison", msg))

			_, err := middleware.Redrive(t.Context(), redriveConfig(broker))
			require.NoError(t, err)
			redriven := broker.in("orders")[0]
			require.Less(t, len(redriven.Metadata.Get(middleware.RedriveHistoryKey)), 8<<10)
			require.Contains(t, redriven.Metadata.Get(middleware.RedriveHistoryKey), "ann")
			require.Equal(t, "1", redriven.Metadata.Get(middleware.RedrivenKey))
		})
	}
}

func TestRedriveLeavesWhatTheFilterDoesNotSelect(t *testing.T) {
	t.Parallel()
	march := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for reason, filter := range map[string]middleware.RedriveFilter{
		"by consumer":      {Consumer: "billing"},
		"by key":           {MessageKey: "wanted"},
		"by outcome":       {Outcome: middleware.OutcomeLate},
		"by reason":        {ReasonContains: "of late"},
		"by time":          {PoisonedFrom: march, PoisonedBefore: march.Add(time.Hour)},
		"by all of these":  {Consumer: "billing", MessageKey: "wanted", Outcome: middleware.OutcomeLate, PoisonedFrom: march},
		"by time, from on": {PoisonedFrom: march},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			broker := newQueues()
			other := func(uuid string) *message.Message {
				msg := poisoned(uuid, "shipping", middleware.OutcomeCollision)
				msg.Metadata.Set(middleware.PoisonedAtKey, march.Add(-time.Hour).Format(time.RFC3339Nano))
				return msg
			}
			require.NoError(t, broker.Publish("poison", other("a"), poisoned("wanted", "billing", middleware.OutcomeLate), other("b")))

			report, err := middleware.Redrive(t.Context(), redriveConfig(broker, func(c *middleware.RedriveConfig) { c.Filter = filter }))
			require.NoError(t, err)
			require.Equal(t, 1, report.Selected)
			require.Equal(t, 2, report.Kept)
			broker.requireUUIDs(t, "orders", "wanted")
			broker.requireUUIDs(t, "poison", "a", "b")
		})
	}
}

func TestADryRunOfRedrivePublishesNothingToTheTopic(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	require.NoError(t, broker.Publish("poison", poisoned("1", "billing", middleware.OutcomeLate), poisoned("2", "billing", middleware.OutcomeLate)))

	report, err := middleware.Redrive(t.Context(), redriveConfig(broker, func(c *middleware.RedriveConfig) { c.DryRun = true }))
	require.NoError(t, err)
	require.Equal(t, 2, report.Selected)
	require.Len(t, report.Records, 2)
	broker.requireUUIDs(t, "orders")
	broker.requireUUIDs(t, "poison", "1", "2")
}

func TestRedriveStopsAtItsLimit(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	for i := range 5 {
		require.NoError(t, broker.Publish("poison", poisoned(strconv.Itoa(i), "billing", middleware.OutcomeLate)))
	}
	report, err := middleware.Redrive(t.Context(), redriveConfig(broker, func(c *middleware.RedriveConfig) { c.Limit = 2 }))
	require.NoError(t, err)
	require.Equal(t, 2, report.Selected)
	broker.requireUUIDs(t, "orders", "0", "1")
	broker.requireUUIDs(t, "poison", "2", "3", "4")
}

func TestAMessageStaysInThePoisonTopicWhenItCannotBePublishedElsewhere(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	require.NoError(t, broker.Publish("poison", poisoned("1", "billing", middleware.OutcomeLate)))
	down := errors.New("broker is down")
	broker.publishErr = func(topic string) error {
		if topic == "orders" {
			return down
		}
		return nil
	}
	_, err := middleware.Redrive(t.Context(), redriveConfig(broker))
	require.ErrorIs(t, err, down)
	broker.requireUUIDs(t, "poison", "1")
}

func TestAMessageStaysInThePoisonTopicWhenItsRecordCannotBeKept(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	require.NoError(t, broker.Publish("poison", poisoned("1", "billing", middleware.OutcomeLate)))
	full := errors.New("disk full")
	_, err := middleware.Redrive(t.Context(), redriveConfig(broker, func(c *middleware.RedriveConfig) {
		c.Action = middleware.RedriveDiscard
		c.Record = func(context.Context, middleware.RedriveRecord) error { return full }
	}))
	require.ErrorIs(t, err, full)
	broker.requireUUIDs(t, "poison", "1")
}

func TestTwoRunsOfRedriveAtOnceLoseNothing(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	var want []string
	for i := range 200 {
		uuid := fmt.Sprint("message ", i)
		consumer := []string{"billing", "shipping"}[i%2]
		if consumer == "billing" {
			want = append(want, uuid)
		}
		require.NoError(t, broker.Publish("poison", poisoned(uuid, consumer, middleware.OutcomeLate)))
	}

	var operators sync.WaitGroup
	for range 2 {
		operators.Add(1)
		go func() {
			defer operators.Done()
			_, err := middleware.Redrive(t.Context(), redriveConfig(broker, func(c *middleware.RedriveConfig) {
				c.Filter.Consumer = "billing"
			}))
			if err != nil {
				t.Error(err)
			}
		}()
	}
	operators.Wait()
	// One of them may have stopped at a mark while the other still had a message in its hands.
	_, err := middleware.Redrive(t.Context(), redriveConfig(broker, func(c *middleware.RedriveConfig) { c.Filter.Consumer = "billing" }))
	require.NoError(t, err)
	broker.requireUUIDs(t, "orders", want...)
	// The last message that a run met went back by a nack.
	require.Eventually(t, func() bool { return len(broker.in("poison")) == 100 }, 10*time.Second, time.Millisecond)
}

func TestACollisionThatComesBackDoesNotGoRoundInOneRun(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	require.NoError(t, broker.Publish("poison", poisoned("1", "billing", middleware.OutcomeCollision)))
	rounds := 0
	broker.publishErr = func(topic string) error {
		if topic == "orders" {
			rounds++
		}
		return nil
	}
	consumerCtx, stop := context.WithCancel(t.Context())
	defer stop()
	orders, err := broker.Subscribe(consumerCtx, "orders")
	require.NoError(t, err)
	go func() {
		for msg := range orders {
			for name, value := range poisoned("1", "billing", middleware.OutcomeCollision).Metadata {
				msg.Metadata.Set(name, value)
			}
			if err := broker.Publish("poison", msg); err == nil {
				msg.Ack()
			}
		}
	}()

	report, err := middleware.Redrive(t.Context(), redriveConfig(broker))
	require.NoError(t, err)
	require.Equal(t, 1, report.Selected)
	require.Equal(t, 1, rounds)
	broker.requireUUIDs(t, "poison", "1")
}

func TestAcceptAsNewAndDiscardKeepARecordOfWhoAndWhy(t *testing.T) {
	t.Parallel()
	for _, action := range []middleware.RedriveAction{middleware.RedriveAcceptAsNew, middleware.RedriveDiscard} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			broker := newQueues()
			require.NoError(t, broker.Publish("poison", poisoned("1", "billing", middleware.OutcomeCollision)))
			var records []middleware.RedriveRecord
			_, err := middleware.Redrive(t.Context(), redriveConfig(broker, func(c *middleware.RedriveConfig) {
				c.Action = action
				c.Record = func(_ context.Context, record middleware.RedriveRecord) error {
					records = append(records, record)
					return nil
				}
				if action == middleware.RedriveAcceptAsNew {
					c.Change = func(msg *message.Message) error {
						msg.UUID = "corrected"
						return nil
					}
				}
			}))
			require.NoError(t, err)
			require.Len(t, records, 1)
			require.Equal(t, action, records[0].Action)
			require.Equal(t, "ann", records[0].Operator)
			require.Equal(t, "the handler is mended", records[0].Reason)
			require.Equal(t, "1", records[0].MessageKey)
			broker.requireUUIDs(t, "poison")
			if action == middleware.RedriveAcceptAsNew {
				broker.requireUUIDs(t, "orders", "corrected")
			} else {
				broker.requireUUIDs(t, "orders")
			}
		})
	}
}

func TestRedriveRefusesAConfigurationThatLosesTrackOfWhoDidWhat(t *testing.T) {
	t.Parallel()
	broker := newQueues()
	for problem, change := range map[string]func(*middleware.RedriveConfig){
		"Operator":       func(c *middleware.RedriveConfig) { c.Operator = "" },
		"Reason":         func(c *middleware.RedriveConfig) { c.Reason = "" },
		"Subscriber":     func(c *middleware.RedriveConfig) { c.Subscriber = nil },
		"Publisher":      func(c *middleware.RedriveConfig) { c.Publisher = nil },
		"PoisonTopic":    func(c *middleware.RedriveConfig) { c.PoisonTopic = "" },
		"Record":         func(c *middleware.RedriveConfig) { c.Action = middleware.RedriveDiscard },
		"Change":         func(c *middleware.RedriveConfig) { c.Action = middleware.RedriveAcceptAsNew },
		"keeps the iden": func(c *middleware.RedriveConfig) { c.Change = func(*message.Message) error { return nil } },
		"unknown action": func(c *middleware.RedriveConfig) { c.Action = "burn" },
		"negative":       func(c *middleware.RedriveConfig) { c.Limit = -1 },
	} {
		t.Run(problem, func(t *testing.T) {
			t.Parallel()
			_, err := middleware.Redrive(t.Context(), redriveConfig(broker, change))
			require.ErrorContains(t, err, problem)
		})
	}
}
