package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

type orderAccepted struct{ Order string }

type orderCancelled struct{ Order string }

type billOrder struct{ Order string }

var cqrsMarshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

func marshal(t *testing.T, v any) *message.Message {
	t.Helper()
	msg, err := cqrsMarshaler.Marshal(v)
	require.NoError(t, err)
	return msg
}

// repository writes in the transaction of the context, as an application's own code does.
type repository struct{}

func (repository) save(ctx context.Context, id string) error {
	tx, ok := sqlinbox.TxFromContext(ctx)
	if !ok {
		return sqlinbox.ErrNoTransaction
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES ($1)`, id)
	return err
}

// failing gives back each error once, and then nil.
func failing(failures ...error) func() error {
	return func() error {
		if len(failures) == 0 {
			return nil
		}
		next := failures[0]
		failures = failures[1:]
		return next
	}
}

func (r *rig) eventProcessor(t *testing.T, handlers ...cqrs.EventHandler) {
	t.Helper()
	processor, err := cqrs.NewEventProcessorWithConfig(r.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(params cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return params.EventHandler.HandlerName(), nil
		},
		SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return r.mailbox, nil
		},
		OnHandle: func(params cqrs.EventProcessorOnHandleParams) error {
			ctx := params.Message.Context()
			return sqlinbox.Guard(ctx, params.Handler.HandlerName(), func(*sql.Tx) error {
				return params.Handler.Handle(ctx, params.Event)
			})
		},
		Marshaler: cqrsMarshaler,
	})
	require.NoError(t, err)
	require.NoError(t, processor.AddHandlers(handlers...))
}

func (r *rig) groupProcessor(t *testing.T, group string, handlers ...cqrs.GroupEventHandler) {
	t.Helper()
	processor, err := cqrs.NewEventGroupProcessorWithConfig(r.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(params cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return params.EventGroupName, nil
		},
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return r.mailbox, nil
		},
		OnHandle: func(params cqrs.EventGroupProcessorOnHandleParams) error {
			ctx := params.Message.Context()
			// The handlers of a group have no names. Two of them may take the same event.
			return sqlinbox.Guard(ctx, fmt.Sprintf("%p", params.Handler), func(*sql.Tx) error {
				return params.Handler.Handle(ctx, params.Event)
			})
		},
		AckOnUnknownEvent: true,
		Marshaler:         cqrsMarshaler,
	})
	require.NoError(t, err)
	require.NoError(t, processor.AddHandlersGroup(group, handlers...))
}

func (r *rig) commandProcessor(t *testing.T, ackErrors bool, onHandle cqrs.CommandProcessorOnHandleFn, handlers ...cqrs.CommandHandler) {
	t.Helper()
	processor, err := cqrs.NewCommandProcessorWithConfig(r.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(params cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return params.CommandHandler.HandlerName(), nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return r.mailbox, nil
		},
		OnHandle:                 onHandle,
		AckCommandHandlingErrors: ackErrors,
		Marshaler:                cqrsMarshaler,
	})
	require.NoError(t, err)
	require.NoError(t, processor.AddHandlers(handlers...))
}

func guardCommand(params cqrs.CommandProcessorOnHandleParams) error {
	ctx := params.Message.Context()
	return sqlinbox.Guard(ctx, params.Handler.HandlerName(), func(*sql.Tx) error {
		return params.Handler.Handle(ctx, params.Command)
	})
}

func (r *rig) requireRows(t *testing.T, table, column string, want map[string]int) {
	t.Helper()
	rows, err := r.db.Query(`SELECT ` + column + `, count(*) FROM ` + table + ` GROUP BY ` + column)
	require.NoError(t, err)
	defer rows.Close()
	got := map[string]int{}
	for rows.Next() {
		var (
			value string
			n     int
		)
		require.NoError(t, rows.Scan(&value, &n))
		got[value] = n
	}
	require.NoError(t, rows.Err())
	require.Equal(t, want, got, table)
}

func TestEachHandlerOfAnEventProcessorIsAConsumer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		rig.router.AddMiddleware(rig.inbox.Middleware)
		end := failing(errors.New("broken"))
		rig.eventProcessor(t,
			cqrs.NewEventHandler("bill", func(ctx context.Context, _ *orderAccepted) error { return repository{}.save(ctx, "bill") }),
			cqrs.NewEventHandler("ship", func(ctx context.Context, _ *orderAccepted) error {
				return errors.Join(repository{}.save(ctx, "ship"), end())
			}),
		)
		rig.run(t)
		msg := marshal(t, &orderAccepted{Order: "7"})

		require.True(t, rig.deliver(t, "bill", msg))
		require.False(t, rig.deliver(t, "ship", msg))
		for range 2 {
			require.True(t, rig.deliver(t, "bill", msg))
			require.True(t, rig.deliver(t, "ship", msg))
		}
		rig.requireRows(t, "effects", "id", map[string]int{"bill": 1, "ship": 1})
		rig.requireRows(t, "inbox", "consumer_name", map[string]int{"bill": 1, "ship": 1})
		rig.requireRows(t, "inbox", "event_type", map[string]int{"orderAccepted": 2})
	})
}

// Watermill hands a message to a group once, so the handlers of a group stand and fall together: they are one
// consumer, and one transaction.
func TestAnEventGroupIsOneConsumerAndOneTransaction(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		rig.router.AddMiddleware(rig.inbox.Middleware)
		end := failing(errors.New("broken"))
		rig.groupProcessor(t, "sales",
			cqrs.NewGroupEventHandler(func(ctx context.Context, _ *orderAccepted) error { return repository{}.save(ctx, "bill") }),
			cqrs.NewGroupEventHandler(func(ctx context.Context, _ *orderAccepted) error {
				return errors.Join(repository{}.save(ctx, "ship"), end())
			}),
			cqrs.NewGroupEventHandler(func(ctx context.Context, _ *orderCancelled) error { return repository{}.save(ctx, "refund") }),
		)
		rig.groupProcessor(t, "statistics",
			cqrs.NewGroupEventHandler(func(ctx context.Context, _ *orderAccepted) error { return repository{}.save(ctx, "count") }))
		rig.run(t)
		placed, cancelled, unknown := marshal(t, &orderAccepted{Order: "7"}), marshal(t, &orderCancelled{Order: "7"}), marshal(t, &billOrder{})

		require.False(t, rig.deliver(t, "sales", placed))
		rig.requireEffects(t, 0) // that of the first handler is gone as well
		for range 2 {
			require.True(t, rig.deliver(t, "sales", placed))
			require.True(t, rig.deliver(t, "sales", cancelled))
			require.True(t, rig.deliver(t, "sales", unknown))
			require.True(t, rig.deliver(t, "statistics", placed))
		}
		rig.requireRows(t, "effects", "id", map[string]int{"bill": 1, "ship": 1, "refund": 1, "count": 1})
		rig.requireRows(t, "inbox", "consumer_name", map[string]int{"sales": 3, "statistics": 1})
	})
}

func TestACommandIsHandledOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		rig.router.AddMiddleware(rig.inbox.Middleware)
		end := failing(errors.New("broken"))
		rig.commandProcessor(t, false, guardCommand, cqrs.NewCommandHandler("bill", func(ctx context.Context, _ *billOrder) error {
			return errors.Join(repository{}.save(ctx, "bill"), end())
		}))
		rig.run(t)
		msg := marshal(t, &billOrder{Order: "7"})

		require.False(t, rig.deliver(t, "bill", msg))
		for range 3 {
			require.True(t, rig.deliver(t, "bill", msg))
		}
		require.Equal(t, []middleware.Outcome{
			middleware.OutcomeError, middleware.OutcomeAccepted, middleware.OutcomeDuplicate, middleware.OutcomeDuplicate,
		}, rig.diary.outcomes("bill"))
		rig.requireEffects(t, 1)
	})
}

func TestAckCommandHandlingErrorsIsRefusedWithGuard(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		rig.router.AddMiddleware(rig.inbox.Middleware)
		broken := errors.New("broken")
		rig.commandProcessor(t, true, guardCommand, cqrs.NewCommandHandler("bill", func(ctx context.Context, _ *billOrder) error {
			return errors.Join(repository{}.save(ctx, "bill"), broken)
		}))
		rig.run(t)

		require.False(t, rig.deliver(t, "bill", marshal(t, &billOrder{Order: "7"})))
		require.ErrorIs(t, rig.diary.lastError("bill"), sqlinbox.ErrHiddenFailure)
		require.ErrorIs(t, rig.diary.lastError("bill"), broken)
		require.ErrorContains(t, rig.diary.lastError("bill"), "AckCommandHandlingErrors")
		rig.requireEffects(t, 0)
		rig.requireEntries(t, 0)
	})
}

// This is the hole: without Guard a hidden error looks like a success, and what the handler had written before
// it is committed.
func TestAckCommandHandlingErrorsWithoutGuardCommitsHalfDoneWork(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		rig.router.AddMiddleware(rig.inbox.Middleware)
		rig.commandProcessor(t, true, nil, cqrs.NewCommandHandler("bill", func(ctx context.Context, _ *billOrder) error {
			return errors.Join(repository{}.save(ctx, "bill"), errors.New("broken"))
		}))
		rig.run(t)

		require.True(t, rig.deliver(t, "bill", marshal(t, &billOrder{Order: "7"})))
		rig.requireEffects(t, 1)
	})
}

func TestRetryInsideTheInboxNeverLeavesTheWritesOfAFailedAttemptOfACqrsHandler(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		rig.router.AddMiddleware(rig.inbox.Middleware, wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Microsecond}.Middleware)
		end := failing(errors.New("broken"))
		rig.eventProcessor(t, cqrs.NewEventHandler("bill", func(ctx context.Context, _ *orderAccepted) error {
			return errors.Join(repository{}.save(ctx, "bill"), end())
		}))
		rig.run(t)
		msg := marshal(t, &orderAccepted{Order: "7"})

		require.False(t, rig.deliver(t, "bill", msg))
		require.ErrorIs(t, rig.diary.lastError("bill"), sqlinbox.ErrRepeatedCall)
		rig.requireEffects(t, 0)
		require.True(t, rig.deliver(t, "bill", msg))
		rig.requireEffects(t, 1)
	})
}

func TestARepositoryOutsideOfAnInboxHasNoTransaction(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, repository{}.save(t.Context(), "bill"), sqlinbox.ErrNoTransaction)
	require.ErrorContains(t, repository{}.save(t.Context(), "bill"), "is Inbox.Middleware added")
	require.ErrorIs(t, sqlinbox.Guard(t.Context(), "bill", func(*sql.Tx) error { return nil }), sqlinbox.ErrNoTransaction)
	handler := sqlinbox.NoPublishHandler(func(*sql.Tx, *message.Message) error { return nil })
	require.ErrorIs(t, handler(message.NewMessage("1", nil)), sqlinbox.ErrNoTransaction)
	require.ErrorIs(t, sqlinbox.SetResult(t.Context(), "task/1"), sqlinbox.ErrNoTransaction)
}
