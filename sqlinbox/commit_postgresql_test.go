//go:build !embedded

package sqlinbox_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/pgproxy"
)

const (
	insertEntry  = "INSERT INTO inbox ("
	insertEffect = "INSERT INTO effects"
)

func TestALostConnectionIsNeverAnAckAndTheRedeliveryFindsOutWhatHappened(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		cut  func(*pgproxy.Proxy) *pgproxy.Fault

		runs   int32 // of the effect before the cut
		second middleware.Disposition
	}{
		{"before the insert of the entry", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutBefore(insertEntry) }, 0, middleware.Accepted},
		{"after the insert of the entry", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutAfter(insertEntry) }, 0, middleware.Accepted},
		{"before the statement of the effect", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutBefore(insertEffect) }, 1, middleware.Accepted},
		{"after the statement of the effect", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutAfter(insertEffect) }, 1, middleware.Accepted},
		{"before the server hears of the commit", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutBefore("COMMIT") }, 1, middleware.Accepted},
		{"after the server has committed", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutAfter("COMMIT") }, 1, middleware.KnownByKey},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			proxy, database := proxied(t)
			ledger := newLedger(t, database)
			var runs atomic.Int32
			counted := func(ctx context.Context) error {
				runs.Add(1)
				return effect(ctx)
			}

			cut := test.cut(proxy)
			receipt, err := ledger.Process(t.Context(), entry("1"), counted)
			<-cut.Reached()
			require.Error(t, err)
			require.NotEqual(t, middleware.Accepted, receipt.Disposition)
			require.True(t, middleware.IsTransient(err), "%v", err)
			require.Equal(t, test.runs, runs.Load())

			receipt, err = ledger.Process(t.Context(), entry("1"), counted)
			require.NoError(t, err)
			require.Equal(t, test.second, receipt.Disposition)
			ledger.requireEntries(t, 1)
			ledger.requireEffects(t, 1)
		})
	}
}

func TestALostAnswerToTheCommitOfASemanticDuplicateIsNeverAnAck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		cut    func(*pgproxy.Proxy) *pgproxy.Fault
		second middleware.Disposition
	}{
		{"before the server hears of it", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutBefore("COMMIT") }, middleware.KnownByBusinessKey},
		{"after the server has committed", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutAfter("COMMIT") }, middleware.KnownByKey},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			proxy, database := proxied(t)
			ledger := newLedger(t, database)
			first, other := entry("1"), entry("2")
			first.BusinessKey, other.BusinessKey = "order/7", "order/7"
			_, err := ledger.Process(t.Context(), first, effect)
			require.NoError(t, err)

			cut := test.cut(proxy)
			_, err = ledger.Process(t.Context(), other, effect)
			<-cut.Reached()
			require.Error(t, err)

			receipt, err := ledger.Process(t.Context(), other, effect)
			require.NoError(t, err)
			require.Equal(t, test.second, receipt.Disposition)
			ledger.requireEntries(t, 2)
			ledger.requireEffects(t, 1)
		})
	}
}

func TestALostAnswerToTheCommitIsADuplicateForTheRouter(t *testing.T) {
	t.Parallel()
	proxy, database := proxied(t)
	s := newService(t, database, writeEffect)

	proxy.CutAfter("COMMIT")
	s.deliver(t, newOrder("1", `{}`))

	require.Equal(t, []middleware.Outcome{middleware.OutcomeError, middleware.OutcomeDuplicate}, s.outcomes())
	s.requireEntries(t, 1)
	s.requireEffects(t, 1)
}

// The evidence is committed after the copy is published. Between the two a second copy can arise, never none.
func TestALostConnectionWhileACollisionIsRecordedMayPoisonTwiceButNeverLoses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name               string
		cut                func(*pgproxy.Proxy) *pgproxy.Fault
		copies, deliveries int
	}{
		{"before the count is kept", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutBefore("COMMIT") }, 2, 1},
		{"after the count is kept", func(p *pgproxy.Proxy) *pgproxy.Fault { return p.CutAfter("COMMIT") }, 1, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			proxy, database := proxied(t)
			s := newService(t, database, writeEffect)
			s.deliver(t, newOrder("1", `{"amount":1}`))

			test.cut(proxy) // a known key does not commit: the next COMMIT is that of the evidence
			s.deliver(t, newOrder("1", `{"amount":2}`))

			require.Equal(t, []middleware.Outcome{
				middleware.OutcomeAccepted, middleware.OutcomeCollision, middleware.OutcomeCollision,
			}, s.outcomes())
			require.Error(t, s.deliveries()[1].Err)
			require.NoError(t, s.deliveries()[2].Err)
			require.Len(t, s.config.poison.messages(), test.copies)
			s.requireCollisions(t, 1, int64(test.deliveries))
		})
	}
}

func TestADelayedAnswerToTheCommitIsAwaited(t *testing.T) {
	t.Parallel()
	proxy, database := proxied(t)
	ledger := newLedger(t, database)
	held := proxy.HoldAnswer("COMMIT")
	first := processInBackground(ledger, entry("1"), effect)
	<-held.Reached()

	rival, err := sqlinbox.NewStore(ledger.db, sqlinbox.Config{Dialect: database.Dialect})
	require.NoError(t, err)
	t.Cleanup(func() { _ = rival.Close() })
	receipt, err := rival.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, middleware.KnownByKey, receipt.Disposition, "the server has committed")
	require.Empty(t, first, "an unsure commit is not answered")

	held.Release()
	require.Equal(t, processed{receipt: middleware.Receipt{Disposition: middleware.Accepted}}, <-first)
	ledger.requireEntries(t, 1)
	ledger.requireEffects(t, 1)
}

func TestTheEntryIsWrittenBeforeTheEffectAndADuplicateWritesNothing(t *testing.T) {
	t.Parallel()
	proxy, database := proxied(t)
	ledger := newLedger(t, database)

	before := len(proxy.Statements())
	_, err := ledger.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, []string{"BEGIN READ", "INSERT entry", "INSERT INTO", "COMMIT"}, statementsSince(proxy, before))

	before = len(proxy.Statements())
	_, err = ledger.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	require.Equal(t, []string{"BEGIN READ", "INSERT entry", "SELECT message_id,", "ROLLBACK"}, statementsSince(proxy, before))
}

func TestDuplicatesAreNoErrorsOfTheDatabase(t *testing.T) {
	t.Parallel()
	proxy, database := proxied(t)
	ledger := newLedger(t, database)
	_, err := ledger.Process(t.Context(), entry("1"), effect)
	require.NoError(t, err)
	for range 1000 {
		receipt, err := ledger.Process(t.Context(), entry("1"), effect)
		require.NoError(t, err)
		require.Equal(t, middleware.KnownByKey, receipt.Disposition)
	}
	require.Empty(t, proxy.Errors())
}

func processInBackground(l ledger, e middleware.Entry, effect func(context.Context) error) <-chan processed {
	result := make(chan processed, 1)
	go func() {
		receipt, err := l.Process(context.Background(), e, effect)
		result <- processed{receipt, err}
	}()
	return result
}
