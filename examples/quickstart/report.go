package main

import (
	"context"
	"database/sql"
	"fmt"
	"sync"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// tally is an Observer that explains and counts the deliveries. Collisions are counted apart.
type tally struct {
	mu                               sync.Mutex
	accepted, duplicates, collisions int
	others                           int
}

func (t *tally) ObserveDelivery(event middleware.DeliveryEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch event.Outcome {
	case middleware.OutcomeAccepted:
		t.accepted++
		fmt.Printf("  %s  new key: entry and invoice are committed in one transaction, then acked\n", event.MessageKey)
	case middleware.OutcomeDuplicate:
		t.duplicates++
		fmt.Printf("  %s  known key, equal payload: duplicate, the handler does not run, acked\n", event.MessageKey)
	case middleware.OutcomeCollision:
		t.collisions++
		fmt.Printf("  %s  known key, other payload: collision, the handler does not run, acked after it is poisoned\n", event.MessageKey)
	default:
		t.others++
		fmt.Printf("  %s  %s: %v\n", event.MessageKey, event.Outcome, event.Err)
	}
}

// report prints what the observer has seen and what the database holds.
func report(ctx context.Context, db *sql.DB, t *tally) error {
	var entries, invoices int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM inbox`).Scan(&entries); err != nil {
		return err
	}
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM invoices`).Scan(&invoices); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Printf("           collisions=%d, counted apart\n\n", t.collisions)
	fmt.Printf("deliveries=%d\n", t.accepted+t.duplicates+t.others)
	fmt.Printf("accepted=%d\n", t.accepted)
	fmt.Printf("duplicates=%d\n", t.duplicates)
	fmt.Printf("inbox_rows=%d\n", entries)
	fmt.Printf("business_effects=%d\n", invoices)
	return nil
}
