package sqlinbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// slowEffect writes like effect, and then holds the transaction until it is told to end.
type slowEffect struct {
	runs    atomic.Int32
	started chan struct{}
	release chan error
}

func newSlowEffect() *slowEffect {
	return &slowEffect{started: make(chan struct{}, 64), release: make(chan error)}
}

func (s *slowEffect) run(ctx context.Context) error {
	s.runs.Add(1)
	err := effect(ctx)
	s.started <- struct{}{}
	return errors.Join(err, <-s.release)
}

type answer struct {
	receipt middleware.Receipt
	err     error
}

// begin processes in the background.
func (l ledger) begin(ctx context.Context, entry middleware.Entry, effect func(context.Context) error) <-chan answer {
	answered := make(chan answer, 1)
	go func() {
		receipt, err := l.Process(ctx, entry, effect)
		answered <- answer{receipt, err}
	}()
	return answered
}

func inFlightWait(wait time.Duration) func(*sqlinbox.Config) {
	return func(c *sqlinbox.Config) { c.InFlightWait = wait }
}

func failFast(c *sqlinbox.Config) { c.FailFast = true }

func TestADeliveryWaitsForAnotherOneAtMostInFlightWaitAndIsThenHeld(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(*sqlinbox.Config){
		"InFlightWait": inFlightWait(20 * time.Millisecond),
		"FailFast":     failFast,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				ledger := newLedger(t, database, wait)
				slow := newSlowEffect()
				first := ledger.begin(t.Context(), entry("1"), slow.run)
				await(t, slow.started, "the first delivery")

				receipt, err := ledger.Process(t.Context(), entry("1"), slow.run)
				require.NoError(t, err)
				require.Equal(t, middleware.Held, receipt.Disposition)

				slow.release <- nil
				require.Equal(t, middleware.Accepted, await(t, first, "the first delivery's end").receipt.Disposition)
				receipt, err = ledger.Process(t.Context(), entry("1"), slow.run)
				require.NoError(t, err)
				require.Equal(t, middleware.KnownByKey, receipt.Disposition)
				require.EqualValues(t, 1, slow.runs.Load())
				ledger.requireEffects(t, 1)
				require.Zero(t, ledger.db.Stats().InUse)
			})
		})
	}
}

func TestADeliveryThatWaitedIsADuplicateOrRunsAsTheFirstOneEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		first  error
		second middleware.Disposition
		runs   int32
	}{
		"the first commits": {nil, middleware.KnownByKey, 1},
		"the first fails":   {errors.New("broken"), middleware.Accepted, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, database testdb.Database) {
				ledger := newLedger(t, database, inFlightWait(patience))
				slow := newSlowEffect()
				first := ledger.begin(t.Context(), entry("1"), slow.run)
				await(t, slow.started, "the first delivery")
				second := ledger.begin(t.Context(), entry("1"), slow.run)

				slow.release <- end.first
				require.ErrorIs(t, await(t, first, "the first delivery's end").err, end.first)
				if end.first != nil {
					slow.release <- nil
				}
				answer := await(t, second, "the second delivery's end")
				require.NoError(t, answer.err)
				require.Equal(t, end.second, answer.receipt.Disposition)
				require.Equal(t, end.runs, slow.runs.Load())
				ledger.requireEffects(t, 1)
				ledger.requireEntries(t, 1)
			})
		})
	}
}

func TestADeliveryInFlightIsNackedWithATransientErrorAndNotPoisoned(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database, failFast))
		slow := newSlowEffect()
		rig.handle("slow", func(msg *message.Message) error { return slow.run(msg.Context()) }, rig.inbox.Middleware)
		rig.run(t)
		msg := message.NewMessage("1", []byte(`{}`))

		first := make(chan bool, 1)
		go func() { first <- rig.deliver(t, "slow", msg) }()
		await(t, slow.started, "the first delivery")
		require.False(t, rig.deliver(t, "slow", msg), "acked in flight")
		require.ErrorIs(t, rig.diary.lastError("slow"), middleware.ErrInFlight)
		require.True(t, middleware.IsTransient(rig.diary.lastError("slow")))
		require.Equal(t, []middleware.Outcome{middleware.OutcomeInFlight}, rig.diary.outcomes("slow"))

		slow.release <- nil
		require.True(t, await(t, first, "the first delivery's ack"))
		require.True(t, rig.deliver(t, "slow", msg))
		require.Empty(t, rig.poison.of("slow"))
		require.EqualValues(t, 1, slow.runs.Load())
		rig.requireEffects(t, 1)
	})
}

func TestADeliveryWhoseContextEndsWhileItWaitsLeavesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		ledger := newLedger(t, database, inFlightWait(patience))
		slow := newSlowEffect()
		first := ledger.begin(t.Context(), entry("1"), slow.run)
		await(t, slow.started, "the first delivery")

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := ledger.Process(ctx, entry("1"), slow.run)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, middleware.IsTransient(err), "the handler did not run, so it did not fail: %v", err)

		slow.release <- nil
		require.NoError(t, await(t, first, "the first delivery's end").err)
		require.EqualValues(t, 1, slow.runs.Load())
		ledger.requireEffects(t, 1)
		require.Zero(t, ledger.db.Stats().InUse)
	})
}
