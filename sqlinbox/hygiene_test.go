package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// mixture delivers messages that come to every outcome, on one handler of its own.
type mixture struct {
	*rig
	handler string
	slow    *slowEffect
	cancel  context.CancelFunc
}

func (r *rig) addMixture(handler string) *mixture {
	m := &mixture{rig: r, handler: handler, slow: newSlowEffect()}
	r.handle(handler, sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
		if _, err := tx.ExecContext(msg.Context(), `INSERT INTO effects (id) VALUES ('effect')`); err != nil {
			return err
		}
		switch msg.Metadata.Get("end") {
		case "fail":
			return errors.New("broken")
		case "panic":
			panic("broken")
		case "goexit":
			runtime.Goexit()
		case "cancel":
			m.cancel()
			return msg.Context().Err()
		case "wait":
			m.slow.started <- struct{}{}
			return <-m.slow.release
		}
		return nil
	}), r.inbox.Middleware)
	return m
}

func (m *mixture) message(uuid, business, end, payload string) *message.Message {
	msg := message.NewMessage(uuid, []byte(payload))
	msg.Metadata.Set("business", business)
	msg.Metadata.Set("end", end)
	return msg
}

// deliverRound delivers eleven messages.
func (m *mixture) deliverRound(t *testing.T, round int) {
	t.Helper()
	uuid := func(kind string) string { return fmt.Sprintf("%s %d", kind, round) }
	first := m.message(uuid("first"), uuid("order"), "", `{}`)
	m.deliver(t, m.handler, first)
	m.deliver(t, m.handler, first)
	m.deliver(t, m.handler, m.message(first.UUID, uuid("order"), "", `{"other": true}`))
	m.deliver(t, m.handler, m.message(uuid("second"), uuid("order"), "", `{}`))
	m.deliver(t, m.handler, m.message("", "", "", `{}`))
	for _, end := range []string{"fail", "panic", "goexit"} {
		m.deliver(t, m.handler, m.message(uuid(end), uuid(end), end, `{}`))
	}

	ctx, cancel := context.WithCancel(t.Context())
	m.cancel = cancel
	m.deliverWith(ctx, t, m.handler, m.message(uuid("cancel"), uuid("cancel"), "cancel", `{}`))

	slow := m.message(uuid("slow"), uuid("slow"), "wait", `{}`)
	acked := make(chan bool, 1)
	go func() {
		// A broker delivers again what found the database busy.
		for !m.deliver(t, m.handler, slow) {
		}
		acked <- true
	}()
	await(t, m.slow.started, "the slow delivery")
	m.deliver(t, m.handler, slow)
	m.slow.release <- nil
	await(t, acked, "the slow delivery's end")
}

var roundOutcomes = map[middleware.Outcome]int{
	middleware.OutcomeAccepted:          2,
	middleware.OutcomeDuplicate:         1,
	middleware.OutcomeSemanticDuplicate: 1,
	middleware.OutcomeCollision:         1,
	middleware.OutcomeUnidentified:      1,
	middleware.OutcomeInFlight:          1,
	middleware.OutcomeError:             4,
}

// It counts the goroutines of the whole process, so it must run alone: no t.Parallel.
func TestTenThousandMixedOutcomesLeakNeitherGoroutinesNorConnections(t *testing.T) {
	const workers = 4
	databases := testdb.All()
	for _, database := range databases {
		t.Run(database.Name, func(t *testing.T) {
			ledger := newLedger(t, database, failFast)
			parallel := workers
			if database.Name == "SQLite" {
				_, err := ledger.db.Exec(`PRAGMA synchronous = OFF`)
				require.NoError(t, err)
				parallel = 1 // a slow delivery holds the only connection
			} else {
				ledger.db.SetMaxOpenConns(2 * workers)
				ledger.db.SetMaxIdleConns(2 * workers)
				commitWithoutFlush(t, ledger.db, 2*workers)
			}
			handlers := map[string]middleware.HandlerConfig{}
			for worker := range parallel {
				handlers[fmt.Sprint("mixture ", worker)] = middleware.HandlerConfig{BusinessKey: middleware.KeyFromMetadata("business")}
			}
			rig := newRig(t, ledger, func(c *middleware.InboxConfig) { c.Handlers = handlers })
			var mixtures []*mixture
			for handler := range handlers {
				mixtures = append(mixtures, rig.addMixture(handler))
			}
			rig.run(t)

			deliver := func(from, to int) {
				var group sync.WaitGroup
				for _, mixture := range mixtures {
					group.Add(1)
					go func() {
						defer group.Done()
						for round := from; round < to; round++ {
							mixture.deliverRound(t, round)
						}
					}()
				}
				group.Wait()
			}
			total := 10_000/11/len(databases)/parallel + 1
			deliver(0, 10)
			before := runtime.NumGoroutine()
			deliver(10, total)

			eventually(t, "every connection to come back", func() bool { return rig.db.Stats().InUse == 0 })
			eventually(t, fmt.Sprintf("the goroutines to be %d again", before), func() bool { return runtime.NumGoroutine() <= before })
			require.LessOrEqual(t, rig.db.Stats().OpenConnections, 2*workers)
			outcomes := map[middleware.Outcome]int{}
			for handler := range handlers {
				for _, outcome := range rig.diary.outcomes(handler) {
					outcomes[outcome]++
				}
			}
			// With FailFast any short wait for a lock is "in flight", so that there may be some more of these.
			require.GreaterOrEqual(t, outcomes[middleware.OutcomeInFlight], total*parallel)
			for outcome, n := range roundOutcomes {
				if outcome == middleware.OutcomeInFlight {
					continue
				}
				require.InDelta(t, n*total*parallel, outcomes[outcome], 20, outcome)
			}
			rig.requireEffects(t, outcomes[middleware.OutcomeAccepted])
			rig.requireEntries(t, outcomes[middleware.OutcomeAccepted]+outcomes[middleware.OutcomeSemanticDuplicate])
		})
	}
}

// commitWithoutFlush spares the disk: thousands of commits, and none of them is about power failures.
func commitWithoutFlush(t *testing.T, db *sql.DB, connections int) {
	t.Helper()
	for range connections {
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		_, err = conn.ExecContext(t.Context(), `SET synchronous_commit = off`)
		require.NoError(t, err)
		defer conn.Close()
	}
}
