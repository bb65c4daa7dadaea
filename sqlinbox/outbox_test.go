package sqlinbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// recorder is a broker that remembers what was published, and refuses while refuse says so.
type recorder struct {
	mu        sync.Mutex
	published []published
	refuse    func(topic string) error
}

type published struct {
	topic string
	msg   *message.Message
}

func (r *recorder) Publish(topic string, messages ...*message.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		if err := r.refuse(topic); err != nil {
			return err
		}
	}
	for _, msg := range messages {
		r.published = append(r.published, published{topic, msg.Copy()})
	}
	return nil
}

func (r *recorder) Close() error { return nil }

func (r *recorder) all() []published {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]published(nil), r.published...)
}

func (r *recorder) requireArrived(t *testing.T, count int) []published {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.all()) >= count }, 20*time.Second, 5*time.Millisecond, "published messages")
	require.Len(t, r.all(), count)
	return r.all()
}

// outboxRig is a router with one handler that produces, behind an inbox with an outbox.
type outboxRig struct {
	ledger
	outbox *sqlinbox.Outbox
	naive  *recorder // the publisher of the handler, which must never see anything
	broker *recorder // where the forwarder publishes
	in     *gochannel.GoChannel
	events *eventLog
}

type eventLog struct {
	mu     sync.Mutex
	events []middleware.DeliveryEvent
}

func (l *eventLog) ObserveDelivery(event middleware.DeliveryEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
}

func (l *eventLog) requireOutcomes(t *testing.T, want ...middleware.Outcome) {
	t.Helper()
	var got []middleware.Outcome
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		got = nil
		for _, event := range l.events {
			got = append(got, event.Outcome)
		}
		return len(got) >= len(want)
	}, 20*time.Second, time.Millisecond, "deliveries")
	require.Equal(t, want, got)
}

func newOutboxRig(t *testing.T, database testdb.Database, handler func(ctx context.Context, msg *message.Message) ([]*message.Message, error)) *outboxRig {
	t.Helper()
	rig := &outboxRig{ledger: newLedger(t, database), naive: &recorder{}, broker: &recorder{}, events: &eventLog{}}
	var err error
	rig.outbox, err = sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: rig.db, Dialect: database.Dialect, InitializeSchema: true})
	require.NoError(t, err)
	inbox, err := middleware.NewInbox(middleware.InboxConfig{Store: rig.Store, Outbox: rig.outbox, Observer: rig.events})
	require.NoError(t, err)

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	rig.in = gochannel.NewGoChannel(gochannel.Config{}, nil)
	router.AddMiddleware(inbox.Middleware)
	router.AddPlugin(inbox.Plugin)
	router.AddHandler("orders", "orders", rig.in, "invoices", rig.naive, func(msg *message.Message) ([]*message.Message, error) {
		return handler(msg.Context(), msg)
	})
	run(t, router.Run, router.Running(), router.Close)
	t.Cleanup(func() { require.Empty(t, rig.naive.all(), "a message left outside of the transaction") })
	return rig
}

// run runs a router or forwarder until the end of the test.
func run(t *testing.T, start func(context.Context) error, running chan struct{}, stop func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- start(context.Background()) }()
	select {
	case <-running:
	case err := <-done:
		t.Fatalf("it did not start: %v", err)
	}
	t.Cleanup(func() {
		require.NoError(t, stop())
		require.NoError(t, <-done)
	})
}

func (r *outboxRig) forward(t *testing.T) *sqlinbox.Forwarder {
	t.Helper()
	forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{
		Outbox: r.outbox, Publisher: r.broker, PollInterval: 5 * time.Millisecond, ResendInterval: 5 * time.Millisecond,
	})
	require.NoError(t, err)
	run(t, forwarder.Run, forwarder.Running(), forwarder.Close)
	return forwarder
}

func (r *outboxRig) deliver(t *testing.T, msg *message.Message) {
	t.Helper()
	require.NoError(t, r.in.Publish("orders", msg))
}

func (r *outboxRig) requireWaiting(t *testing.T, want int) {
	t.Helper()
	require.Equal(t, want, r.count(t, "inbox_outbox"), "rows in the outbox")
}

func invoice(uuid, payload string) *message.Message {
	msg := message.NewMessage(uuid, []byte(payload))
	msg.Metadata.Set("kind", "invoice")
	return msg
}

func TestProducedMessagesAreCommittedWithTheirEntryAndForwarded(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, func(ctx context.Context, msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{invoice("i-1", "first"), invoice("i-2", "second"), invoice("i-3", "third")}, effect(ctx)
		})
		order := message.NewMessage("o-1", []byte(`{}`))
		wmmiddleware.SetCorrelationID("flow-7", order)
		rig.deliver(t, order)
		rig.events.requireOutcomes(t, middleware.OutcomeAccepted)
		rig.requireEntries(t, 1)
		rig.requireEffects(t, 1)
		rig.requireWaiting(t, 3)

		rig.forward(t)
		for i, got := range rig.broker.requireArrived(t, 3) {
			require.Equal(t, "invoices", got.topic)
			require.Equal(t, fmt.Sprint("i-", i+1), got.msg.UUID)
			require.Equal(t, []string{"first", "second", "third"}[i], string(got.msg.Payload))
			require.Equal(t, "invoice", got.msg.Metadata.Get("kind"))
			require.Equal(t, "o-1", got.msg.Metadata.Get(sqlinbox.CausationIDKey))
			require.Equal(t, "flow-7", wmmiddleware.MessageCorrelationID(got.msg))
		}

		rig.deliver(t, order)
		rig.events.requireOutcomes(t, middleware.OutcomeAccepted, middleware.OutcomeDuplicate)
		rig.broker.requireArrived(t, 3)
	})
}

func TestAFailedHandlerLeavesNothingInTheOutbox(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		calls := 0
		rig := newOutboxRig(t, database, func(ctx context.Context, msg *message.Message) ([]*message.Message, error) {
			if calls++; calls == 1 {
				return []*message.Message{invoice("i-1", "lost")}, errors.New("broken")
			}
			return nil, effect(ctx)
		})
		rig.deliver(t, message.NewMessage("o-1", []byte(`{}`)))
		rig.events.requireOutcomes(t, middleware.OutcomeError, middleware.OutcomeAccepted)
		rig.requireWaiting(t, 0)
	})
}

func TestAMessageWithoutUUIDGetsTheSameOneOnEveryRun(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, func(ctx context.Context, msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{invoice("", "a"), invoice("", "b")}, effect(ctx)
		})
		rig.forward(t)
		var first []published
		for round := range 2 {
			rig.deliver(t, message.NewMessage("o-1", []byte(`{}`)))
			all := rig.broker.requireArrived(t, 2*(round+1))
			if round == 0 {
				first = all
				// As if the entry's transaction had been rolled back after all.
				_, err := rig.db.Exec(`DELETE FROM inbox`)
				require.NoError(t, err)
				continue
			}
			require.Equal(t, first[0].msg.UUID, all[2].msg.UUID)
			require.Equal(t, first[1].msg.UUID, all[3].msg.UUID)
			require.NotEqual(t, first[0].msg.UUID, first[1].msg.UUID)
		}
	})
}

func TestTwoProducedMessagesWithOneUUIDAreAnErrorAndNotADuplicate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		for name, swallow := range map[string]bool{"returned": false, "swallowed": true} {
			t.Run(name, func(t *testing.T) {
				ledger := newLedger(t, database)
				outbox, err := sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: ledger.db, Dialect: database.Dialect, InitializeSchema: true})
				require.NoError(t, err)
				_, err = ledger.Process(t.Context(), entry("1"), func(ctx context.Context) error {
					for range 2 {
						msg := invoice("i-1", "x")
						msg.SetContext(ctx)
						if err := outbox.Publish("invoices", msg); err != nil && !swallow {
							return err
						}
					}
					return nil
				})
				require.ErrorIs(t, err, sqlinbox.ErrRepeatedUUID)
				ledger.requireEntries(t, 0)
				require.Zero(t, ledger.count(t, "inbox_outbox"))
			})
		}
	})
}

func TestOneUUIDForTwoTopicsIsFine(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, nil)
		_, err := rig.Process(t.Context(), entry("1"), func(ctx context.Context) error {
			for _, topic := range []string{"a", "b", "c"} {
				msg := invoice("i-1", topic)
				msg.SetContext(ctx)
				if err := rig.outbox.Publish(topic, msg); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, err)
		refusals := 0
		rig.broker.refuse = func(topic string) error {
			if topic == "b" && refusals < 3 {
				refusals++
				return errors.New("topic b is down")
			}
			return nil
		}
		rig.forward(t)
		var topics []string
		for _, got := range rig.broker.requireArrived(t, 3) {
			topics = append(topics, got.topic)
		}
		require.ElementsMatch(t, []string{"a", "b", "c"}, topics)
		require.Equal(t, 3, refusals)
	})
}

func TestTheOutboxRefusesAMessageOutsideOfATransaction(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, nil)
		require.ErrorIs(t, rig.outbox.Publish("invoices", invoice("i-1", "x")), sqlinbox.ErrNoOutboxTransaction)
		require.ErrorContains(t, rig.outbox.Publish("", invoice("i-1", "x")), "topic is empty")
		rig.requireWaiting(t, 0)
	})
}

func TestATransactionOfTheCallersOwnTakesMessagesAlong(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, nil)
		for _, commit := range []bool{false, true} {
			tx, err := rig.db.Begin()
			require.NoError(t, err)
			ctx := sqlinbox.ContextWithTx(t.Context(), tx)
			_, isInbox := sqlinbox.TxFromContext(ctx)
			require.False(t, isInbox, "it is no transaction of an inbox")

			msg := invoice("i-1", "x")
			msg.SetContext(ctx)
			require.NoError(t, rig.outbox.Publish("invoices", msg))
			without := invoice("", "x")
			without.SetContext(ctx)
			require.ErrorContains(t, rig.outbox.Publish("invoices", without), "no UUID")
			if commit {
				require.NoError(t, tx.Commit())
				rig.requireWaiting(t, 1)
			} else {
				require.NoError(t, tx.Rollback())
				rig.requireWaiting(t, 0)
			}
		}
	})
}

func TestAnEventBusInAHandlerPublishesInTheTransaction(t *testing.T) {
	t.Parallel()
	type InvoiceSent struct{ ID string }
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, nil)
		bus, err := cqrs.NewEventBusWithConfig(rig.outbox, cqrs.EventBusConfig{
			GeneratePublishTopic: func(params cqrs.GenerateEventPublishTopicParams) (string, error) { return params.EventName, nil },
			Marshaler:            cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
		})
		require.NoError(t, err)
		broken := errors.New("broken")
		for _, fails := range []error{broken, nil} {
			_, err = rig.Process(t.Context(), entry("1"), func(ctx context.Context) error {
				return errors.Join(bus.Publish(ctx, InvoiceSent{ID: "i-1"}), fails)
			})
			require.ErrorIs(t, err, fails)
		}
		rig.requireWaiting(t, 1)
		rig.forward(t)
		require.Equal(t, "InvoiceSent", rig.broker.requireArrived(t, 1)[0].topic)
	})
}

func TestACorruptRowIsParkedAndDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, nil)
		publish := func(uuid string) {
			_, err := rig.Process(t.Context(), entry(uuid), func(ctx context.Context) error {
				msg := invoice(uuid, "x")
				msg.SetContext(ctx)
				return rig.outbox.Publish("invoices", msg)
			})
			require.NoError(t, err)
		}
		insert := `INSERT INTO inbox_outbox (uuid, payload, metadata) VALUES ($1, $2, $3)`
		if database.Name == "PostgreSQL" {
			insert = `INSERT INTO inbox_outbox (uuid, payload, metadata, transaction_id) VALUES ($1, $2, $3, pg_current_xact_id())`
		}
		for i := range 9 {
			publish(fmt.Sprint("i-", i))
			if i == 3 {
				for n, row := range [][2]string{{`{"foo":1}`, `{}`}, {`[]`, `{}`}, {`{"destination_topic":"x"}`, `[1]`}} {
					_, err := rig.db.Exec(insert, fmt.Sprint("corrupt-", n), row[0], row[1])
					require.NoError(t, err)
				}
			}
		}
		forwarder := rig.forward(t)
		for i, got := range rig.broker.requireArrived(t, 9) {
			require.Equal(t, fmt.Sprint("i-", i), got.msg.UUID)
		}
		require.EqualValues(t, 3, forwarder.Parked())
		require.Equal(t, 3, rig.count(t, "inbox_outbox_parked"))
	})
}

func TestAForwarderThatDiesBeforeItMarksPublishesTheSameUUIDsAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, func(ctx context.Context, msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{invoice("", "a"), invoice("", "b")}, effect(ctx)
		})
		rig.deliver(t, message.NewMessage("o-1", []byte(`{}`)))
		rig.events.requireOutcomes(t, middleware.OutcomeAccepted)

		// It publishes and then fails: what a kill at that moment leaves behind is the same row, unmarked.
		first := &recorder{}
		dying := publishThenFail{first}
		forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{Outbox: rig.outbox, Publisher: dying, PollInterval: 5 * time.Millisecond, ResendInterval: 5 * time.Millisecond})
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- forwarder.Run(context.Background()) }()
		require.Eventually(t, func() bool { return len(first.all()) > 0 }, 20*time.Second, time.Millisecond)
		require.NoError(t, forwarder.Close())
		require.NoError(t, <-done)
		seen := first.all()

		rig.forward(t)
		again := rig.broker.requireArrived(t, 2)
		require.Equal(t, seen[0].msg.UUID, again[0].msg.UUID)
	})
}

type publishThenFail struct{ *recorder }

func (p publishThenFail) Publish(topic string, messages ...*message.Message) error {
	return errors.Join(p.recorder.Publish(topic, messages...), errors.New("killed before the row was marked"))
}

func TestCleanRemovesOnlyWhatWasForwardedLongAgo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, func(ctx context.Context, msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{invoice("", "a")}, effect(ctx)
		})
		rig.deliver(t, message.NewMessage("o-1", []byte(`{}`)))
		rig.events.requireOutcomes(t, middleware.OutcomeAccepted)
		deleted, err := rig.outbox.Clean(t.Context(), 0)
		require.NoError(t, err)
		require.Zero(t, deleted, "it was not forwarded yet")

		rig.forward(t)
		rig.broker.requireArrived(t, 1)
		deleted, err = rig.outbox.Clean(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Zero(t, deleted, "it was forwarded just now")
		require.Eventually(t, func() bool {
			deleted, err = rig.outbox.Clean(t.Context(), 0)
			return err == nil && deleted == 1
		}, 20*time.Second, 5*time.Millisecond)
		rig.requireWaiting(t, 0)
	})
}

func TestAnOutboxWithoutItsTableSaysHowToGetIt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		_, err := sqlinbox.NewOutbox(sqlinbox.OutboxConfig{DB: database.Open(t), Dialect: database.Dialect})
		require.ErrorContains(t, err, "inbox_outbox")
		require.ErrorContains(t, err, "InitializeSchema")
	})
	_, err := sqlinbox.NewOutbox(sqlinbox.OutboxConfig{Table: "no; table"})
	for _, problem := range []string{"DB", "Dialect", "no; table"} {
		require.ErrorContains(t, err, problem)
	}
	_, err = sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{PollInterval: -1})
	for _, problem := range []string{"Outbox", "Publisher", "negative"} {
		require.ErrorContains(t, err, problem)
	}
}

func TestCleanDoesNotDependOnTheTimeZoneOfTheSession(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, nil)
		if database.Name == "PostgreSQL" {
			rig.db.SetMaxOpenConns(1) // so that the setting is that of all that follows
		}
		for i, zone := range []string{"Pacific/Kiritimati", "Pacific/Pago_Pago"} {
			if database.Name == "PostgreSQL" {
				_, err := rig.db.Exec(`SET TIME ZONE '` + zone + `'`)
				require.NoError(t, err)
			}
			rig.publishInvoices(t, zone)
			forwarder := rig.forward(t)
			// At least: one that is closed between publishing and marking leaves its message to the next.
			require.Eventually(t, func() bool { return len(rig.broker.all()) > i }, patience, time.Millisecond)
			require.NoError(t, forwarder.Close())
			deleted, err := rig.outbox.Clean(t.Context(), 30*time.Minute)
			require.NoError(t, err)
			require.Zero(t, deleted, "it was forwarded just now")
		}
		_, err := rig.outbox.Clean(t.Context(), -1)
		require.ErrorContains(t, err, "negative")
	})
}

// publishInvoices commits one message for each UUID, each in a transaction of its own.
func (r *outboxRig) publishInvoices(t *testing.T, uuids ...string) {
	t.Helper()
	for _, uuid := range uuids {
		_, err := r.Process(t.Context(), entry(uuid), func(ctx context.Context) error {
			msg := invoice(uuid, "x")
			msg.SetContext(ctx)
			return r.outbox.Publish("invoices", msg)
		})
		require.NoError(t, err)
	}
}

func TestTheForwarderLogsNoPayloadAndLogsThatTheOutboxCannotBeRead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, nil)
		insert := `INSERT INTO inbox_outbox (uuid, payload, metadata) VALUES ($1, $2, '{"note":"topsecret"}')`
		if database.Name == "PostgreSQL" {
			insert = `INSERT INTO inbox_outbox (uuid, payload, metadata, transaction_id) VALUES ($1, $2, '{"note":"topsecret"}', pg_current_xact_id())`
		}
		for _, payload := range []string{
			`{"destination_topic":"x","uuid":7,"payload":"dG9wc2VjcmV0"}`, // Watermill's forwarder cannot decode it
			`{"destination_topic":"","payload":"topsecret"}`,
			`["topsecret"]`,
		} {
			_, err := rig.db.Exec(insert, "corrupt", payload) // one UUID for all: none gets lost
			require.NoError(t, err)
		}
		msg := invoice("i-1", "topsecret")
		tx, err := rig.db.Begin()
		require.NoError(t, err)
		msg.SetContext(sqlinbox.ContextWithTx(t.Context(), tx))
		require.NoError(t, rig.outbox.Publish("invoices", msg))
		require.NoError(t, tx.Commit())
		refused := false
		rig.broker.refuse = func(string) error {
			if refused {
				return nil
			}
			refused = true
			return errors.New("down")
		}

		var log lockedBuffer
		logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: watermill.LevelTrace})))
		forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{
			Outbox: rig.outbox, Publisher: rig.broker, PollInterval: 5 * time.Millisecond, ResendInterval: 5 * time.Millisecond, Logger: logger,
		})
		require.NoError(t, err)
		run(t, forwarder.Run, forwarder.Running(), forwarder.Close)
		rig.broker.requireArrived(t, 1)
		require.EqualValues(t, 3, forwarder.Parked())
		require.Equal(t, 3, rig.count(t, "inbox_outbox_parked"))

		_, err = rig.db.Exec(`ALTER TABLE inbox_outbox RENAME TO elsewhere`)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return strings.Contains(log.String(), "Cannot read the outbox")
		}, patience, 5*time.Millisecond)
		for _, secret := range []string{"topsecret", "dG9wc2VjcmV0", strings.Trim(fmt.Sprint([]byte("topsecret")), "[]"), strings.Trim(fmt.Sprint([]byte("dG9wc2VjcmV0")), "[]")} {
			require.NotContains(t, log.String(), secret)
		}
	})
}

// lockedBuffer may be read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestADuplicateBeforeItsRowWasForwardedIsAckedAndTheRowStillLeaves(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, func(ctx context.Context, msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{invoice("i-1", "x")}, effect(ctx)
		})
		order := message.NewMessage("o-1", []byte(`{}`))
		rig.deliver(t, order)
		rig.events.requireOutcomes(t, middleware.OutcomeAccepted)
		rig.deliver(t, order)
		rig.events.requireOutcomes(t, middleware.OutcomeAccepted, middleware.OutcomeDuplicate)
		rig.requireWaiting(t, 1)
		rig.requireEffects(t, 1)

		rig.forward(t)
		require.Equal(t, "i-1", rig.broker.requireArrived(t, 1)[0].msg.UUID)
	})
}

func TestAPublisherThatFailsAfterTheCommitPointDoublesTheEffectWithoutAnOutbox(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		failOnce := func() func(string) error {
			failed := false
			return func(string) error {
				if failed {
					return nil
				}
				failed = true
				return errors.New("the broker is away for a moment")
			}
		}

		t.Run("the router's own publishing", func(t *testing.T) {
			ledger := newLedger(t, database)
			broker := &recorder{refuse: failOnce()}
			router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
			require.NoError(t, err)
			in := newMailbox()
			router.AddHandler("orders", "orders", in, "invoices", broker, func(msg *message.Message) ([]*message.Message, error) {
				_, err := ledger.db.Exec(`INSERT INTO effects (id) VALUES ('effect')`) // committed here
				return []*message.Message{invoice("i-1", "x")}, err
			})
			run(t, router.Run, router.Running(), router.Close)
			order := message.NewMessage("o-1", []byte(`{}`))
			require.False(t, in.deliver(t, "orders", order), "acked, it would lose the message")
			require.Empty(t, broker.all())
			require.True(t, in.deliver(t, "orders", order))
			require.Len(t, broker.all(), 1)
			ledger.requireEffects(t, 2) // the price of the message
		})
		t.Run("the outbox", func(t *testing.T) {
			rig := newOutboxRig(t, database, func(ctx context.Context, msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{invoice("i-1", "x")}, effect(ctx)
			})
			rig.broker.refuse = failOnce()
			rig.forward(t)
			rig.deliver(t, message.NewMessage("o-1", []byte(`{}`)))
			rig.broker.requireArrived(t, 1)
			rig.events.requireOutcomes(t, middleware.OutcomeAccepted)
			rig.requireEffects(t, 1)
		})
	})
}

func TestHandlersGoOnWhileTheRelayPublishes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newOutboxRig(t, database, nil)
		publishing, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		slow := publisherFunc(func(topic string, messages ...*message.Message) error {
			once.Do(func() { close(publishing) })
			<-release
			return rig.broker.Publish(topic, messages...)
		})
		forwarder, err := sqlinbox.NewForwarder(sqlinbox.ForwarderConfig{Outbox: rig.outbox, Publisher: slow, PollInterval: time.Millisecond})
		require.NoError(t, err)
		run(t, forwarder.Run, forwarder.Running(), forwarder.Close)
		rig.publishInvoices(t, "i-0")
		<-publishing
		for i := range 50 { // with one connection on SQLite; it would wait for ever if the relay held it
			rig.publishInvoices(t, fmt.Sprint("i-", i+1))
		}
		close(release)
		for i, got := range rig.broker.requireArrived(t, 51) {
			require.Equal(t, fmt.Sprint("i-", i), got.msg.UUID)
		}
	})
}

type publisherFunc func(topic string, messages ...*message.Message) error

func (f publisherFunc) Publish(topic string, messages ...*message.Message) error {
	return f(topic, messages...)
}

func (publisherFunc) Close() error { return nil }
