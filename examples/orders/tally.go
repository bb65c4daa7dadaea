package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// tally counts what this process has seen. It is kept in the database with every line of progress, and in full when
// the run finishes: what a killed run has counted since its last line is lost, so its counts are "at least".
type tally struct {
	db  *sql.DB
	run int64

	published, accepted, duplicates, semantic, collisions, failed atomic.Int64
	billing                                                       atomic.Int64 // deliveries at the other end
}

func startTally(ctx context.Context, db *sql.DB) (*tally, error) {
	t := &tally{db: db}
	err := db.QueryRowContext(ctx, `INSERT INTO runs DEFAULT VALUES RETURNING id`).Scan(&t.run)
	return t, err
}

// ObserveDelivery implements middleware.Observer.
func (t *tally) ObserveDelivery(event middleware.DeliveryEvent) {
	switch {
	case event.Err != nil:
		t.failed.Add(1) // it is retried or delivered again
	case event.Outcome == middleware.OutcomeAccepted:
		t.accepted.Add(1)
	case event.Outcome == middleware.OutcomeDuplicate:
		t.duplicates.Add(1)
	case event.Outcome == middleware.OutcomeSemanticDuplicate:
		t.semantic.Add(1)
	case event.Outcome == middleware.OutcomeCollision:
		t.collisions.Add(1)
	default:
		t.failed.Add(1) // poisoned for a reason that this example does not make; the reconciliation finds it
	}
}

func (t *tally) deliveries() int64 {
	return t.accepted.Load() + t.duplicates.Load() + t.semantic.Load() + t.collisions.Load() + t.failed.Load()
}

func (t *tally) settledAnywhere() int64 { return t.deliveries() + t.billing.Load() }

// billingTally counts the other end, so that the run does not end before it.
type billingTally struct{ *tally }

// ObserveDelivery implements middleware.Observer.
func (t billingTally) ObserveDelivery(middleware.DeliveryEvent) { t.billing.Add(1) }

// reportEvery prints a line of progress at every interval until stop is called.
func (t *tally) reportEvery(interval time.Duration) (stop func()) {
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			if err := t.save(context.Background(), false); err != nil {
				fmt.Fprintln(os.Stderr, "orders: cannot keep the counts:", err)
			}
			fmt.Printf("progress: run=%d published=%d deliveries=%d accepted=%d duplicates=%d semantic_duplicates=%d collisions=%d failed=%d\n",
				t.run, t.published.Load(), t.deliveries(), t.accepted.Load(), t.duplicates.Load(), t.semantic.Load(), t.collisions.Load(), t.failed.Load())
		}
	}()
	return func() {
		close(done)
		<-stopped
	}
}

// finish says that the counts are complete: the run was neither killed nor stopped early.
func (t *tally) finish(ctx context.Context) error {
	return t.save(ctx, true)
}

func (t *tally) save(ctx context.Context, finished bool) error {
	_, err := t.db.ExecContext(ctx, `
UPDATE runs
SET finished = $2, published = $3, accepted = $4, duplicates = $5, semantic_duplicates = $6, collisions = $7, failed = $8
WHERE id = $1`,
		t.run, finished, t.published.Load(), t.accepted.Load(), t.duplicates.Load(), t.semantic.Load(), t.collisions.Load(), t.failed.Load())
	return err
}
