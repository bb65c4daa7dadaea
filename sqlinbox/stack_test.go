package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// stack is a rig whose router has the middlewares of NewStack.
func newStack(t *testing.T, ledger ledger, change func(*middleware.StackConfig), changeInbox ...func(*middleware.InboxConfig)) *rig {
	t.Helper()
	rig := newRig(t, ledger, changeInbox...)
	config := middleware.StackConfig{Inbox: rig.inbox, MaxRetries: 2, InitialInterval: time.Microsecond, MaxInterval: time.Millisecond}
	if change != nil {
		change(&config)
	}
	stack, err := middleware.NewStack(config)
	require.NoError(t, err)
	rig.router.AddMiddleware(stack...)
	return rig
}

// deed is a handler that writes its effect, and then ends as the number of its call says.
type deed struct {
	calls atomic.Int32
	end   func(call int32, msg *message.Message) error
}

func (d *deed) handle(tx *sql.Tx, msg *message.Message) error {
	call := d.calls.Add(1)
	if _, err := tx.ExecContext(msg.Context(), `INSERT INTO effects (id) VALUES ('effect')`); err != nil {
		return err
	}
	if d.end == nil {
		return nil
	}
	return d.end(call, msg)
}

type transientFailure struct{}

func (transientFailure) Error() string   { return "the database is starting" }
func (transientFailure) Transient() bool { return true }

func TestTheStackRetriesAHandlersFailureAndThenPoisonsItOnce(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(int32, *message.Message) error{
		"error": func(int32, *message.Message) error { return errors.New("broken") },
		"panic": func(int32, *message.Message) error { panic("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				rig := newStack(t, newLedger(t, database), nil)
				deed := &deed{end: fail}
				rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
				rig.run(t)
				msg := message.NewMessage("1", []byte(`{"total": 5}`))
				msg.Metadata.Set("tenant", "acme")

				require.True(t, rig.deliver(t, "billing", msg))
				require.EqualValues(t, 3, deed.calls.Load(), "one call and two retries")
				require.Len(t, rig.poison.of("billing"), 1)
				poisoned := rig.poison.of("billing")[0]
				require.Equal(t, "1", poisoned.UUID)
				require.Equal(t, msg.Payload, poisoned.Payload)
				require.Equal(t, "acme", poisoned.Metadata.Get("tenant"))
				require.Contains(t, poisoned.Metadata.Get(wmmiddleware.ReasonForPoisonedKey), "broken")
				rig.requireEffects(t, 0)
				rig.requireEntries(t, 0)
			})
		})
	}
}

func TestAHandlerThatWorksAtItsLastRetryHasOneEffect(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newStack(t, newLedger(t, database), func(c *middleware.StackConfig) { c.MaxRetries = 3 })
		deed := &deed{end: func(call int32, _ *message.Message) error {
			if call < 4 {
				return errors.New("broken")
			}
			return nil
		}}
		rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
		rig.run(t)

		require.True(t, rig.deliver(t, "billing", message.NewMessage("1", nil)))
		require.EqualValues(t, 4, deed.calls.Load())
		require.Empty(t, rig.poison.of("billing"))
		rig.requireEffects(t, 1)
		rig.requireEntries(t, 1)
	})
}

func TestTheStackRetriesATransientFailureAndThenNacksIt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newStack(t, newLedger(t, database), nil)
		deed := &deed{end: func(call int32, _ *message.Message) error {
			if call <= 3 {
				return transientFailure{}
			}
			return nil
		}}
		rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
		rig.run(t)
		msg := message.NewMessage("1", nil)

		require.False(t, rig.deliver(t, "billing", msg))
		require.EqualValues(t, 3, deed.calls.Load())
		rig.requireEffects(t, 0)
		require.True(t, rig.deliver(t, "billing", msg))
		require.Empty(t, rig.poison.of("billing"))
		rig.requireEffects(t, 1)
	})
}

func TestTheStackNeverPoisonsWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newStack(t, newLedger(t, database), func(c *middleware.StackConfig) { c.Timeout = 250 * time.Millisecond })
		deed := &deed{}
		rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
		rig.run(t)
		msg := message.NewMessage("1", nil)

		// The pool is used up: every attempt's deadline passes before its transaction begins.
		rig.db.SetMaxOpenConns(1)
		conn, err := rig.db.Conn(t.Context())
		require.NoError(t, err)
		require.False(t, rig.deliver(t, "billing", msg))
		require.Zero(t, deed.calls.Load())
		require.Empty(t, rig.poison.of("billing"))
		require.Len(t, rig.diary.of("billing"), 3)

		require.NoError(t, conn.Close())
		_, acked := rig.deliverUntilAcked(t, "billing", msg, 100)
		require.True(t, acked)
		rig.requireEffects(t, 1)
	})
}

func TestACollisionIsPoisonedOnceAndNeverRetried(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newStack(t, newLedger(t, database), nil)
		deed := &deed{}
		rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
		rig.run(t)

		require.True(t, rig.deliver(t, "billing", message.NewMessage("1", []byte(`{"total": 5}`))))
		for range 5 {
			require.True(t, rig.deliver(t, "billing", message.NewMessage("1", []byte(`{"total": 6}`))))
		}
		require.EqualValues(t, 1, deed.calls.Load())
		require.Len(t, rig.poison.of("billing"), 1)
		require.Equal(t, []middleware.Outcome{
			middleware.OutcomeAccepted, middleware.OutcomeCollision, middleware.OutcomeCollision, middleware.OutcomeCollision,
			middleware.OutcomeCollision, middleware.OutcomeCollision,
		}, rig.diary.outcomes("billing"))
		rig.requireEffects(t, 1)
	})
}

// A collision goes to the stack's own poison queue when the inbox has none.
func TestACollisionReachesThePoisonQueueOfTheStack(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		poison := &poisonBox{}
		rig := newStack(t, newLedger(t, database), func(c *middleware.StackConfig) {
			c.PoisonQueue = middleware.PoisonQueue{Publisher: poison, Topic: "poison"}
		}, func(c *middleware.InboxConfig) { c.PoisonQueue = middleware.PoisonQueue{} })
		deed := &deed{}
		rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
		rig.run(t)

		require.True(t, rig.deliver(t, "billing", message.NewMessage("1", []byte(`{"total": 5}`))))
		require.True(t, rig.deliver(t, "billing", message.NewMessage("1", []byte(`{"total": 6}`))))
		require.Len(t, poison.of("billing"), 1)
		require.Equal(t, 2, len(rig.diary.of("billing")), "the collision must not be retried")
	})
}

func TestAPoisonQueueThatIsDownLeavesTheMessageAtTheBroker(t *testing.T) {
	t.Parallel()
	for name, example := range map[string]struct {
		end      func(int32, *message.Message) error
		payload  string
		attempts int
	}{
		"collision":         {nil, `{"total": 6}`, 3},
		"handler's failure": {func(int32, *message.Message) error { return errors.New("broken") }, `{"total": 5}`, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				rig := newStack(t, newLedger(t, database), nil)
				deed := &deed{end: example.end}
				rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
				rig.run(t)
				if example.end == nil {
					require.True(t, rig.deliver(t, "billing", message.NewMessage("1", []byte(`{"total": 5}`))))
				}
				seen := len(rig.diary.of("billing"))
				msg := message.NewMessage("1", []byte(example.payload))

				rig.poison.fail(errors.New("no route to the broker"))
				require.False(t, rig.deliver(t, "billing", msg))
				require.Len(t, rig.diary.of("billing"), seen+example.attempts)
				rig.poison.fail(nil)
				require.True(t, rig.deliver(t, "billing", msg))
				require.Len(t, rig.poison.of("billing"), 1)
			})
		})
	}
}

func TestATimeoutGivesEachAttemptALiveContextAndAFreshTransaction(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newStack(t, newLedger(t, database), func(c *middleware.StackConfig) { c.Timeout = 500 * time.Millisecond })
		var txs []*sql.Tx
		deed := &deed{end: func(call int32, msg *message.Message) error {
			tx, _ := sqlinbox.TxFromContext(msg.Context())
			txs = append(txs, tx)
			if call == 1 {
				<-msg.Context().Done()
				return msg.Context().Err()
			}
			return msg.Context().Err()
		}}
		rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
		rig.run(t)

		require.True(t, rig.deliver(t, "billing", message.NewMessage("1", nil)))
		require.EqualValues(t, 2, deed.calls.Load())
		require.NotSame(t, txs[0], txs[1])
		rig.requireEffects(t, 1)
		rig.requireEntries(t, 1)
	})
}

// A broker's subscriber cancels the context of its messages when it closes.
func TestAMessageWhoseDeliveryIsCancelledIsNeitherPoisonedNorRetried(t *testing.T) {
	t.Parallel()
	for _, retries := range []int{-1, 2} {
		t.Run(strconv.Itoa(retries), func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				rig := newStack(t, newLedger(t, database), func(c *middleware.StackConfig) { c.MaxRetries = retries })
				ctx, cancel := context.WithCancel(t.Context())
				deed := &deed{end: func(call int32, _ *message.Message) error {
					if call == 1 {
						cancel()
						return errors.New("pq: canceling statement due to user request")
					}
					return nil
				}}
				rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle))
				rig.run(t)
				msg := message.NewMessage("1", nil)

				require.False(t, rig.deliverWith(ctx, t, "billing", msg))
				require.EqualValues(t, 1, deed.calls.Load())
				require.Empty(t, rig.poison.of("billing"))
				require.True(t, rig.deliver(t, "billing", msg))
				rig.requireEffects(t, 1)
			})
		})
	}
}

func TestAMistakeInTheSetUpIsNeitherRetriedNorPoisoned(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]struct {
		inner message.HandlerMiddleware
		want  error
	}{
		"Retry inside": {wmmiddleware.Retry{MaxRetries: 3, InitialInterval: time.Microsecond}.Middleware, sqlinbox.ErrRepeatedCall},
		"errors hidden inside": {func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, _ = h(msg)
				return nil, nil
			}
		}, sqlinbox.ErrHiddenFailure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				rig := newStack(t, newLedger(t, database), nil)
				deed := &deed{end: func(int32, *message.Message) error { return errors.New("broken") }}
				rig.handle("billing", sqlinbox.NoPublishHandler(deed.handle), handler.inner)
				rig.run(t)

				require.False(t, rig.deliver(t, "billing", message.NewMessage("1", nil)))
				require.EqualValues(t, 1, deed.calls.Load())
				require.Len(t, rig.diary.of("billing"), 1)
				require.ErrorIs(t, rig.diary.lastError("billing"), handler.want)
				require.Empty(t, rig.poison.of("billing"))
				rig.requireEffects(t, 0)
			})
		})
	}
}

// After msg.Ack nobody but the inbox keeps the message: its poison queue gets the only copy of one that failed.
func TestAHandlerThatAcksItselfIsSeenAndLosesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		settled := make(chan struct{}, 1)
		notice := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				defer func() { settled <- struct{}{} }()
				return h(msg)
			}
		}
		stack, err := middleware.NewStack(middleware.StackConfig{Inbox: rig.inbox, InitialInterval: time.Microsecond})
		require.NoError(t, err)
		rig.router.AddMiddleware(notice)
		rig.router.AddMiddleware(stack...)
		ctx, cancel := context.WithCancel(t.Context())
		for name, end := range map[string]func() error{
			"works":  func() error { return nil },
			"fails":  func() error { return errors.New("broken") },
			"panics": func() error { panic("broken") },
			// watermill-amqp ends the context of a message as soon as it is acked.
			"is cut off": func() error { cancel(); return nil },
		} {
			rig.handle(name, sqlinbox.NoPublishHandler((&deed{end: func(_ int32, msg *message.Message) error {
				msg.Ack()
				return end()
			}}).handle))
		}
		rig.run(t)
		for _, name := range []string{"works", "fails", "panics", "is cut off"} {
			require.True(t, rig.deliverWith(ctx, t, name, message.NewMessage("1", nil)))
			await(t, settled, "the handler's end")
			require.Len(t, rig.diary.of(name), 1, "it must not be retried")
			require.True(t, rig.diary.of(name)[0].AckedBeforeCommit)
		}

		require.NoError(t, rig.diary.lastError("works"))
		require.Empty(t, rig.poison.of("works"))
		for _, name := range []string{"fails", "panics", "is cut off"} {
			require.Len(t, rig.poison.of(name), 1)
			require.Equal(t, "1", rig.poison.of(name)[0].UUID)
			require.ErrorIs(t, rig.diary.lastError(name), middleware.ErrAckedBeforeCommit)
		}
		require.Contains(t, rig.poison.of("fails")[0].Metadata.Get(wmmiddleware.ReasonForPoisonedKey), "broken")
		rig.requireEffects(t, 1)
		rig.requireEntries(t, 1)
	})
}

// A handler that changes its message and then fails must not make it another message: the retry finds what was
// delivered, and so does the poison queue.
func TestARetryFindsTheMessageAsItWasDelivered(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("broken") },
		"panic": func() error { panic("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				rig := newStack(t, newLedger(t, database), nil)
				var seen []string
				spoil := func(msg *message.Message) error {
					seen = append(seen, string(msg.Payload)+msg.Metadata.Get("note"))
					msg.Payload[2] = 'X'
					msg.Metadata.Set("note", "spoilt")
					return fail()
				}
				rig.handle("recovers", sqlinbox.NoPublishHandler((&deed{end: func(call int32, msg *message.Message) error {
					if call == 1 {
						return spoil(msg)
					}
					seen = append(seen, string(msg.Payload)+msg.Metadata.Get("note"))
					return nil
				}}).handle))
				rig.handle("never works", sqlinbox.NoPublishHandler((&deed{end: func(_ int32, msg *message.Message) error { return spoil(msg) }}).handle))
				rig.run(t)
				deliver := func(handler string) {
					require.True(t, rig.deliver(t, handler, message.NewMessage("1", []byte(`{"total": 5}`))))
				}

				deliver("recovers")
				deliver("recovers")
				require.Equal(t, []middleware.Outcome{middleware.OutcomeError, middleware.OutcomeAccepted, middleware.OutcomeDuplicate}, rig.diary.outcomes("recovers"))
				deliver("never works")
				require.Len(t, rig.poison.of("never works"), 1)
				require.Equal(t, `{"total": 5}`, string(rig.poison.of("never works")[0].Payload))
				require.Empty(t, rig.poison.of("never works")[0].Metadata.Get("note"))
				for _, message := range seen {
					require.Equal(t, `{"total": 5}`, message)
				}
			})
		})
	}
}
