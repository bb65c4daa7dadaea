package middleware_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

func TestAMessageThatIsDeliveredTwiceIsHandledOnce(t *testing.T) {
	t.Parallel()
	calls := 0
	b := newBench(t, func(*message.Message) ([]*message.Message, error) {
		calls++
		return nil, nil
	})
	b.deliver(t, order("1", `{"a":1,"b":2}`))
	b.deliver(t, order("1", `{ "b": 2, "a": 1 }`)) // the same content
	require.Equal(t, []middleware.Outcome{middleware.OutcomeAccepted, middleware.OutcomeDuplicate}, b.outcomes())
	require.Equal(t, 1, calls)
}

func TestTheMessagesContextIsRestoredHoweverTheDeliveryEnds(t *testing.T) {
	t.Parallel()
	type key struct{}
	for _, test := range []struct {
		name    string
		handler message.HandlerFunc
	}{
		{"success", succeed},
		{"error", func(*message.Message) ([]*message.Message, error) { return nil, errBroken }},
		{"panic", func(*message.Message) ([]*message.Message, error) { panic("broken") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			first := true
			var before, inside, after context.Context
			b := newBench(t, func(msg *message.Message) ([]*message.Message, error) {
				if !first {
					return nil, nil
				}
				first = false
				inside = msg.Context()
				return test.handler(msg)
			}, func(b *bench) {
				b.outside = []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						if before != nil {
							return h(msg)
						}
						before = context.WithValue(msg.Context(), key{}, true)
						msg.SetContext(before)
						defer func() { after = msg.Context() }()
						return h(msg)
					}
				}}
			})
			b.deliver(t, order("1", `{}`))
			require.Equal(t, before, after)
			require.NotNil(t, inside.Value(memoryTransaction{}), "the handler has the transaction")
			require.Nil(t, after.Value(memoryTransaction{}), "nobody else has it")
			require.Equal(t, true, inside.Value(key{}), "the handler has what outer middlewares put into the context")
		})
	}
}

func TestAPanicReachesTheOuterMiddlewareWithTheHandlersStack(t *testing.T) {
	t.Parallel()
	var recovered wmmiddleware.RecoveredPanicError
	b := newBench(t, panicOnce(), func(b *bench) {
		b.outside = []message.HandlerMiddleware{
			func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					produced, err := h(msg)
					errors.As(err, &recovered)
					return produced, err
				}
			},
			wmmiddleware.Recoverer,
		}
	})
	b.deliver(t, order("1", `{}`))
	require.Equal(t, "broken", recovered.V)
	require.Contains(t, recovered.Stacktrace, "panicOnce")
}

func panicOnce() message.HandlerFunc {
	calls := 0
	return func(*message.Message) ([]*message.Message, error) {
		if calls++; calls == 1 {
			panic("broken")
		}
		return nil, nil
	}
}

func TestAFailedDeliveryLeavesTheMessageAsItCame(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*message.Message)
	}{
		{"another payload", func(msg *message.Message) { msg.Payload = message.Payload(`{"amount":2}`) }},
		{"a payload changed in place", func(msg *message.Message) { copy(msg.Payload, `{"amount":2}`) }},
		{"other metadata", func(msg *message.Message) { msg.Metadata = message.Metadata{"tenant": "other"} }},
		{"metadata changed in place", func(msg *message.Message) { msg.Metadata.Set("tenant", "other") }},
		{"metadata deleted", func(msg *message.Message) { delete(msg.Metadata, "tenant") }},
	} {
		for _, end := range []struct {
			name string
			how  func() error
		}{
			{"error", func() error { return errBroken }},
			{"panic", func() error { panic("broken") }},
			{"Goexit", func() error { runtime.Goexit(); return nil }},
		} {
			for _, outside := range []struct {
				name string
				add  []message.HandlerMiddleware
			}{
				{"redelivery", nil},
				{"retry", []message.HandlerMiddleware{
					wmmiddleware.Retry{MaxRetries: 1, InitialInterval: time.Nanosecond}.Middleware, wmmiddleware.Recoverer,
				}},
			} {
				t.Run(test.name+", "+end.name+", "+outside.name, func(t *testing.T) {
					t.Parallel()
					calls := 0
					b := newBench(t, func(msg *message.Message) ([]*message.Message, error) {
						calls++
						if calls == 1 {
							test.change(msg)
							return nil, end.how()
						}
						assert.JSONEq(t, `{"amount":1}`, string(msg.Payload))
						assert.Equal(t, message.Metadata{"tenant": "acme"}, msg.Metadata)
						return nil, nil
					}, func(b *bench) { b.outside = outside.add })
					b.deliver(t, order("1", `{"amount":1}`))
					require.Equal(t, []middleware.Outcome{middleware.OutcomeError, middleware.OutcomeAccepted}, b.outcomes())
					require.Equal(t, b.deliveries()[0].PayloadHash, b.deliveries()[1].PayloadHash)
				})
			}
		}
	}
}

func TestAnInboxInsideAnInboxIsRefused(t *testing.T) {
	t.Parallel()
	inner, err := middleware.NewInbox(middleware.InboxConfig{Store: &memory{}})
	require.NoError(t, err)
	nested := true
	b := newBench(t, func(*message.Message) ([]*message.Message, error) {
		assert.False(t, nested, "the handler was called")
		return nil, nil
	}, func(b *bench) {
		b.inside = []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if _, err := inner.Middleware(h)(msg); err != nil {
					nested = false
					return nil, err
				}
				return nil, nil
			}
		}}
		b.outside = []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, err := h(msg)
				assert.ErrorIs(t, err, middleware.ErrNestedInbox)
				return nil, nil // end the redeliveries
			}
		}}
	})
	b.deliver(t, order("1", `{}`))
	require.Equal(t, 0, b.store.size())
}

func TestAnInboxOutsideARouterIsRefused(t *testing.T) {
	t.Parallel()
	store := &memory{}
	inbox, err := middleware.NewInbox(middleware.InboxConfig{Store: store})
	require.NoError(t, err)
	_, err = inbox.Middleware(succeed)(order("1", `{}`))
	require.ErrorIs(t, err, middleware.ErrNoHandlerName)
	require.Equal(t, 0, store.size())
}

func TestAMessageThatTheHandlerAcksIsNoticedByObserverAndLog(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(msg *message.Message) ([]*message.Message, error) {
		msg.Ack()
		return nil, nil
	})
	b.deliver(t, order("1", `{}`))
	require.Eventually(t, func() bool { return len(b.deliveries()) == 1 }, patience, time.Millisecond, "the ack came before the end")
	require.Equal(t, middleware.OutcomeAccepted, b.deliveries()[0].Outcome)
	require.True(t, b.deliveries()[0].AckedBeforeCommit)
	require.True(t, b.logger.HasError(middleware.ErrAckedBeforeCommit))
}

func TestAnObserverThatPanicsChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, succeed, func(b *bench) { b.config.Observer = panicking{} })
	b.deliver(t, order("1", `{}`))
	b.deliver(t, order("1", `{}`))
	require.Equal(t, 1, b.store.size())
	require.Len(t, b.logger.Captured()[watermill.ErrorLogLevel], 2)
	require.Equal(t, "Inbox observer panicked", b.logger.Captured()[watermill.ErrorLogLevel][0].Msg)
}

type panicking struct{}

func (panicking) ObserveDelivery(middleware.DeliveryEvent) { panic("observer") }

func TestOnDuplicateGetsWhatWasStoredAndItsErrorIsANack(t *testing.T) {
	t.Parallel()
	var got []middleware.OnDuplicateParams
	b := newBench(t, succeed, func(b *bench) {
		b.config.Handlers = map[string]middleware.HandlerConfig{"billing": {
			OnDuplicate: func(params middleware.OnDuplicateParams) error {
				got = append(got, params)
				if len(got) == 1 {
					return errBroken
				}
				return nil
			},
		}}
	})
	b.deliver(t, order("1", `{}`))
	require.Empty(t, got)
	b.deliver(t, order("1", `{}`))

	require.Len(t, got, 2, "delivered again after the error")
	require.ErrorIs(t, b.deliveries()[1].Err, errBroken)
	require.NoError(t, b.deliveries()[2].Err)
	require.Equal(t, "billing", got[1].HandlerName)
	require.Equal(t, "billing", got[1].Consumer)
	require.Equal(t, "1", got[1].Message.UUID)
	require.Equal(t, middleware.OutcomeDuplicate, got[1].Outcome)
	require.Equal(t, "task/1", got[1].Stored.ResultReference)
	require.Equal(t, b.deliveries()[0].PayloadHash, got[1].Stored.PayloadHash)
}

func TestMessagesThatAHandlerReturnsGoIntoTheOutboxOfTheTransaction(t *testing.T) {
	t.Parallel()
	outbox := &recorder{}
	b := newBench(t, func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{order("invoice", `{}`)}, nil
	}, func(b *bench) { b.config.Outbox = outbox })
	b.deliver(t, order("1", `{}`))

	require.Equal(t, []string{"invoices"}, outbox.topics)
	require.NotNil(t, outbox.messages()[0].Context().Value(memoryTransaction{}), "published in the transaction")
	require.Empty(t, b.output.messages(), "the router's own publisher never sees them")
}

// A message without a topic would stay in the outbox for ever.
func TestMessagesOfAHandlerWithoutAPublishTopicAreRefused(t *testing.T) {
	t.Parallel()
	outbox := &recorder{}
	inbox, err := middleware.NewInbox(middleware.InboxConfig{Store: &memory{}, Outbox: outbox})
	require.NoError(t, err)
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(t, err)
	failures := make(chan error, 1)
	consumer := router.AddConsumerHandler("billing", "orders", broker, func(*message.Message) error { return nil })
	consumer.AddMiddleware(
		func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, err := h(msg)
				failures <- err
				return nil, nil // end the redeliveries
			}
		},
		inbox.Middleware,
		func(message.HandlerFunc) message.HandlerFunc {
			return func(*message.Message) ([]*message.Message, error) {
				return []*message.Message{order("invoice", `{}`)}, nil
			}
		},
	)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	require.NoError(t, broker.Publish("orders", order("1", `{}`)))

	require.ErrorIs(t, <-failures, message.ErrOutputInNoPublisherHandler)
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.Empty(t, outbox.messages())
}

func TestAnOutboxThatFailsRollsBack(t *testing.T) {
	t.Parallel()
	calls := 0
	b := newBench(t, func(*message.Message) ([]*message.Message, error) {
		calls++
		if calls == 1 {
			return []*message.Message{order("invoice", `{}`)}, nil
		}
		return nil, nil
	}, func(b *bench) { b.config.Outbox = &recorder{err: errBroken} })
	b.deliver(t, order("1", `{}`))
	require.Equal(t, []middleware.Outcome{middleware.OutcomeError, middleware.OutcomeAccepted}, b.outcomes())
	require.ErrorIs(t, b.deliveries()[0].Err, errBroken)
	require.Equal(t, 2, calls)
}

// Each answer of a store has one outcome, and an answer that nobody knows is not an ack.
func TestTheAnswerOfTheStoreDecidesTheOutcome(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		receipt middleware.Receipt
		outcome middleware.Outcome
		err     error  // nil: acked
		says    string // of an error without a sentinel
		poison  int
	}{
		{name: "accepted", receipt: middleware.Receipt{Disposition: middleware.Accepted}, outcome: middleware.OutcomeAccepted},
		{name: "known by business key", receipt: middleware.Receipt{Disposition: middleware.KnownByBusinessKey}, outcome: middleware.OutcomeSemanticDuplicate},
		{name: "past the horizon", receipt: middleware.Receipt{Disposition: middleware.PastHorizon}, outcome: middleware.OutcomeLate, poison: 1},
		{name: "held", receipt: middleware.Receipt{Disposition: middleware.Held}, outcome: middleware.OutcomeInFlight, err: middleware.ErrInFlight},
		{name: "a hash that this build cannot compare", outcome: middleware.OutcomeDuplicate, receipt: middleware.Receipt{
			Disposition: middleware.KnownByKey, Stored: middleware.StoredEntry{PayloadHash: "v999:x:unknown:scheme:digest"},
		}},
		{name: "nothing", receipt: middleware.Receipt{}, outcome: middleware.OutcomeError, says: "unknown disposition 0"},
		{name: "something new", receipt: middleware.Receipt{Disposition: 99}, outcome: middleware.OutcomeError, says: "unknown disposition 99"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, succeed, func(b *bench) {
				answered := false
				b.store.answer = func() (middleware.Receipt, error) {
					if answered {
						return middleware.Receipt{Disposition: middleware.Accepted}, nil // end the redeliveries
					}
					answered = true
					return test.receipt, nil
				}
			})
			b.deliver(t, order("1", `{}`))
			first := b.deliveries()[0]
			require.Equal(t, test.outcome, first.Outcome)
			require.Len(t, b.poison.messages(), test.poison)
			switch {
			case test.err != nil:
				require.ErrorIs(t, first.Err, test.err)
				require.Len(t, b.deliveries(), 2)
			case test.says != "":
				require.ErrorContains(t, first.Err, test.says)
				require.Len(t, b.deliveries(), 2)
			default:
				require.NoError(t, first.Err)
				require.Len(t, b.deliveries(), 1)
			}
			require.Equal(t, test.name == "a hash that this build cannot compare", first.Incomparable)
		})
	}
}

func TestAContractVersionThatTheHandlerDoesNotAcceptIsPoisoned(t *testing.T) {
	t.Parallel()
	b := newBench(t, succeed, func(b *bench) {
		b.config.Handlers = map[string]middleware.HandlerConfig{"billing": {ContractVersions: []string{"1", "2"}}}
	})
	for _, version := range []string{"2", "3", ""} {
		msg := order("order "+version, `{}`)
		msg.Metadata.Set("contract_version", version)
		b.deliver(t, msg)
	}
	require.Equal(t, []middleware.Outcome{
		middleware.OutcomeAccepted, middleware.OutcomeUnsupportedContract, middleware.OutcomeUnsupportedContract,
	}, b.outcomes())
	require.Len(t, b.poison.messages(), 2)
	require.Equal(t, 1, b.store.size())
}

type transient struct{ error }

func (transient) Transient() bool { return true }

func TestErrorsSayWhetherADeliveryCanSucceedLater(t *testing.T) {
	t.Parallel()
	delivery := func(outcome middleware.Outcome) error { return &middleware.DeliveryError{Outcome: outcome} }
	for _, test := range []struct {
		err               error
		poison, transient bool
	}{
		{delivery(middleware.OutcomeCollision), true, false},
		{delivery(middleware.OutcomeLate), true, false},
		{delivery(middleware.OutcomeUnidentified), true, false},
		{delivery(middleware.OutcomeUnsupportedContract), true, false},
		{delivery(middleware.OutcomeInFlight), false, true},
		{errors.Join(errBroken, delivery(middleware.OutcomeCollision)), true, false},
		{transient{errBroken}, false, true},
		{errBroken, false, false},
		{nil, false, false},
	} {
		require.Equal(t, test.poison, middleware.IsPoison(test.err), "%v", test.err)
		require.Equal(t, test.transient, middleware.IsTransient(test.err), "%v", test.err)
	}
}
