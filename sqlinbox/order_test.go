package sqlinbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// order is a chain of middlewares by name, outermost first.
type order []string

func (o order) String() string { return strings.Join(o, ">") }

func (o order) position(name string) int {
	for i, n := range o {
		if n == name {
			return i
		}
	}
	return -1
}

// inside tells whether the named middleware is between the inbox and the handler.
func (o order) inside(name string) bool { return o.position(name) > o.position("Inbox") }

// outside tells whether the named middleware is around the inbox.
func (o order) outside(name string) bool {
	return o.position(name) >= 0 && o.position(name) < o.position("Inbox")
}

func permutations(names ...string) []order {
	if len(names) == 0 {
		return []order{nil}
	}
	var all []order
	for i, name := range names {
		rest := append(append([]string(nil), names[:i]...), names[i+1:]...)
		for _, tail := range permutations(rest...) {
			all = append(all, append(order{name}, tail...))
		}
	}
	return all
}

// conduct is what a handler does after its write, by the number of its call.
type conduct struct {
	name string
	end  func(call int) error
	// fails tells that at least one call returns an error.
	fails bool
}

var conducts = []conduct{
	{name: "works", end: func(int) error { return nil }},
	{name: "fails once", fails: true, end: func(call int) error {
		if call == 1 {
			return errors.New("broken")
		}
		return nil
	}},
	{name: "always fails", fails: true, end: func(int) error { return errors.New("broken") }},
	{name: "panics once", end: func(call int) error {
		if call == 1 {
			panic("broken")
		}
		return nil
	}},
}

// trial is one order of middlewares around one handler.
type trial struct {
	order   order
	conduct conduct
	name    string
	calls   int
	settled chan struct{}
}

func (r *rig) add(t *testing.T, order order, conduct conduct) *trial {
	t.Helper()
	trial := &trial{order: order, conduct: conduct, name: fmt.Sprintf("%s %s", order, conduct.name), settled: make(chan struct{}, 1)}
	poisonQueue, err := wmmiddleware.PoisonQueue(r.poison, "poison")
	require.NoError(t, err)

	chain := []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			defer func() { trial.settled <- struct{}{} }()
			return h(msg)
		}
	}}
	for _, name := range order {
		chain = append(chain, map[string]message.HandlerMiddleware{
			"Inbox":        r.inbox.Middleware,
			"SecondInbox":  r.inbox.Middleware,
			"Retry":        wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Microsecond, ResetContextOnRetry: true}.Middleware,
			"PoisonQueue":  poisonQueue,
			"Recoverer":    wmmiddleware.Recoverer,
			"Timeout":      wmmiddleware.Timeout(patience),
			"InstantAck":   wmmiddleware.InstantAck,
			"Duplicator":   wmmiddleware.Duplicator,
			"Deduplicator": (&wmmiddleware.Deduplicator{KeyFactory: func(msg *message.Message) (string, error) { return msg.UUID, nil }}).Middleware,
		}[name])
	}
	r.handle(trial.name, sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
		trial.calls++
		if _, err := tx.Exec(`INSERT INTO effects (id) VALUES ($1)`, trial.name); err != nil {
			return err
		}
		return trial.conduct.end(trial.calls)
	}), chain...)
	return trial
}

// deliver hands the trial's message over until it is acked, at most four times.
func (r *rig) deliverTrial(t *testing.T, trial *trial) (acked bool) {
	t.Helper()
	msg := message.NewMessage("1", []byte(`{"n": 1}`))
	for delivery := 0; delivery < 4 && !acked; delivery++ {
		acked = r.deliver(t, trial.name, msg)
		await(t, trial.settled, "the handler's end") // it may be acked before
	}
	return acked
}

// verdict is what the database, the poison queue and the inbox's observer know after a trial.
type verdict struct {
	acked                    bool
	effects, entries, poison int
	misuse                   error
	ackedTooEarly            int
}

func (r *rig) try(t *testing.T, trial *trial) verdict {
	t.Helper()
	v := verdict{acked: r.deliverTrial(t, trial), poison: len(r.poison.of(trial.name))}
	require.NoError(t, r.db.QueryRow(`SELECT count(*) FROM effects WHERE id = $1`, trial.name).Scan(&v.effects))
	require.NoError(t, r.db.QueryRow(`SELECT count(*) FROM inbox WHERE consumer_name = $1`, trial.name).Scan(&v.entries))
	for _, event := range r.diary.of(trial.name) {
		if event.AckedBeforeCommit {
			v.ackedTooEarly++
		}
		for _, misuse := range []error{
			sqlinbox.ErrRepeatedCall, sqlinbox.ErrHiddenFailure, sqlinbox.ErrSkippedCall,
			middleware.ErrNestedInbox, middleware.ErrAckedBeforeCommit,
		} {
			if errors.Is(event.Err, misuse) {
				v.misuse = misuse
			}
		}
	}

	// Whatever the order:
	require.LessOrEqual(t, v.effects, 1, "the effect is doubled")
	require.Equal(t, v.effects, v.entries, "an entry without its effect, or an effect without its entry")
	if v.acked && !trial.order.outside("Deduplicator") {
		require.True(t, v.effects == 1 || v.poison > 0, "the message is lost")
	}
	if !v.acked {
		require.Zero(t, v.effects, "the message is nacked although its effect is committed")
	}
	return v
}

// eachOrder tries every order with every conduct on SQLite, and some of them on the other databases.
func eachOrder(t *testing.T, orders []order, claim func(t *testing.T, trial *trial, v verdict)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		sample := 11
		if database.Name == "SQLite" {
			sample = 1
			_, err := rig.db.Exec(`PRAGMA synchronous = OFF`) // hundreds of orders; none is about power failures
			require.NoError(t, err)
		}
		var trials []*trial
		for i, order := range orders {
			if i%sample != 0 {
				continue
			}
			for _, conduct := range conducts {
				trials = append(trials, rig.add(t, order, conduct))
			}
		}
		rig.run(t)
		for _, trial := range trials {
			t.Run(trial.name, func(t *testing.T) { claim(t, trial, rig.try(t, trial)) })
		}
	})
}

func TestNoOrderOfTheStackLosesOrDoublesAnEffect(t *testing.T) {
	t.Parallel()
	eachOrder(t, permutations("Recoverer", "PoisonQueue", "Retry", "Timeout", "Inbox"), func(t *testing.T, trial *trial, v verdict) {
		switch {
		case trial.conduct.fails && (trial.order.inside("Retry") || trial.order.inside("PoisonQueue")):
			require.Error(t, v.misuse, "the order must be refused")
			require.ErrorContains(t, v.misuse, "outside of the inbox")
		case trial.conduct.name != "panics once":
			require.NoError(t, v.misuse, "the order is right")
			require.True(t, v.acked)
			require.Equal(t, 1, v.effects+v.poison, "done once or poisoned once")
		}
		if trial.conduct.name == "always fails" && trial.order.outside("Retry") && trial.order.position("PoisonQueue") < trial.order.position("Retry") {
			require.Equal(t, 3, trial.calls, "one call and two retries")
			require.Equal(t, 1, v.poison)
		}
	})
}

func TestAMessageThatIsAckedBeforeTheCommitIsNotLost(t *testing.T) {
	t.Parallel()
	eachOrder(t, append(permutations("InstantAck", "PoisonQueue", "Retry", "Inbox"), permutations("InstantAck", "Recoverer", "Inbox")...), func(t *testing.T, trial *trial, v verdict) {
		require.True(t, v.acked)
		if trial.order.outside("InstantAck") {
			require.Zero(t, trial.calls, "refused before the effect")
			require.ErrorIs(t, v.misuse, middleware.ErrAckedBeforeCommit)
			require.NotZero(t, v.poison, "the only copy that is left")
		}
		require.NotZero(t, v.ackedTooEarly, "it must be counted")
	})
}

func TestADeduplicatorInsideTheInboxIsRefusedOnceItHidesACall(t *testing.T) {
	t.Parallel()
	eachOrder(t, permutations("Deduplicator", "PoisonQueue", "Retry", "Inbox"), func(t *testing.T, trial *trial, v verdict) {
		if trial.conduct.name == "fails once" && trial.order.inside("Deduplicator") && trial.order.outside("Retry") && trial.order.outside("PoisonQueue") &&
			trial.order.position("PoisonQueue") < trial.order.position("Retry") {
			require.ErrorIs(t, v.misuse, sqlinbox.ErrSkippedCall)
			require.ErrorContains(t, v.misuse, "outside of the inbox")
		}
	})
}

// This is the hole: what a Deduplicator around the inbox takes for done never reaches the inbox. It remembers a
// message before its handler has worked.
func TestADeduplicatorAroundTheInboxLosesWhatFailedOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		trial := rig.add(t, order{"Deduplicator", "Inbox"}, conducts[1])
		rig.run(t)
		v := rig.try(t, trial)
		require.True(t, v.acked)
		require.Zero(t, v.effects)
		require.Equal(t, []middleware.Outcome{middleware.OutcomeError}, rig.diary.outcomes(trial.name), "the inbox sees one delivery of two")
	})
}

func TestADuplicatorHasOneEffectOutsideOfTheInboxAndIsRefusedInside(t *testing.T) {
	t.Parallel()
	eachOrder(t, permutations("Duplicator", "PoisonQueue", "Retry", "Inbox"), func(t *testing.T, trial *trial, v verdict) {
		if trial.conduct.name != "works" {
			return
		}
		if trial.order.outside("Duplicator") {
			require.Equal(t, 1, v.effects)
			require.Equal(t, 1, trial.calls)
			require.NoError(t, v.misuse)
			return
		}
		require.ErrorIs(t, v.misuse, sqlinbox.ErrRepeatedCall)
		require.ErrorContains(t, v.misuse, "Recoverer, PoisonQueue, Retry, Timeout, Inbox, handler")
		require.Zero(t, v.effects)
	})
}

func TestAnInboxInsideAnInboxIsRefused(t *testing.T) {
	t.Parallel()
	eachOrder(t, permutations("SecondInbox", "Retry", "Recoverer", "Inbox"), func(t *testing.T, trial *trial, v verdict) {
		require.ErrorIs(t, v.misuse, middleware.ErrNestedInbox)
		require.ErrorContains(t, v.misuse, "not to both")
		require.False(t, v.acked)
		require.Zero(t, trial.calls)
	})
}

// Watermill's Timeout leaves its context in the message. Unless Retry puts the message's own back, every attempt
// after the first one begins with a context that has ended.
func TestATimeoutInsideARetryThatKeepsItsContextIsNamed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, database testdb.Database) {
		rig := newRig(t, newLedger(t, database))
		calls := 0
		rig.handle("billing", sqlinbox.NoPublishHandler(func(*sql.Tx, *message.Message) error {
			calls++
			if calls == 1 {
				return errors.New("broken")
			}
			return nil
		}),
			wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Microsecond}.Middleware, wmmiddleware.Timeout(patience), rig.inbox.Middleware)
		rig.run(t)
		msg := message.NewMessage("1", []byte(`{}`))

		require.False(t, rig.deliver(t, "billing", msg))
		require.ErrorContains(t, rig.diary.lastError("billing"), "set Retry.ResetContextOnRetry")
		require.True(t, middleware.IsTransient(rig.diary.lastError("billing")))
		require.Equal(t, 1, calls)
		require.True(t, rig.deliver(t, "billing", msg), "the redelivery has a context of its own")
		rig.requireEntries(t, 1)
	})
}
