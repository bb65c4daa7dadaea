package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// found is what the database and the broker hold when all is done.
type found struct {
	ordersPublished int64 // orders whose messages the broker has confirmed

	entries, semanticEntries, evidence int64 // rows of the inbox's tables
	effects, distinctOrders, cents     int64 // rows of orders

	billingEntries, bills, billedOrders, billedCents int64 // the same at the other end

	ordersDepth, billingDepth, outboxWaiting, parked int64
	poison                                           poisoned

	runs, endedEarly int64
	counted          counts // by the observer, over all runs
}

type counts struct {
	published, accepted, duplicates, semantic, collisions, failed int64
}

func (c counts) deliveries() int64 {
	return c.accepted + c.duplicates + c.semantic + c.collisions + c.failed
}

func look(ctx context.Context, config config, db *sql.DB, broker *broker) (f found, err error) {
	err = db.QueryRowContext(ctx, `
SELECT (SELECT next_order FROM producer),
       (SELECT count(*) FROM inbox WHERE consumer_name = '`+ordersConsumer+`'),
       (SELECT count(*) FROM inbox WHERE duplicate_of IS NOT NULL),
       (SELECT count(*) FROM inbox WHERE consumer_name = '`+billingConsumer+`'),
       (SELECT count(*) FROM bills), (SELECT count(DISTINCT order_number) FROM bills), (SELECT coalesce(sum(cents), 0) FROM bills),
       (SELECT count(*) FROM inbox_collisions),
       count(*), count(DISTINCT order_number), coalesce(sum(cents), 0)
FROM orders`).Scan(&f.ordersPublished, &f.entries, &f.semanticEntries,
		&f.billingEntries, &f.bills, &f.billedOrders, &f.billedCents, &f.evidence, &f.effects, &f.distinctOrders, &f.cents)
	if err != nil {
		return f, err
	}
	err = db.QueryRowContext(ctx, `
SELECT count(*), count(*) FILTER (WHERE NOT finished), sum(published), sum(accepted), sum(duplicates),
       sum(semantic_duplicates), sum(collisions), sum(failed)
FROM runs`).Scan(&f.runs, &f.endedEarly, &f.counted.published, &f.counted.accepted, &f.counted.duplicates,
		&f.counted.semantic, &f.counted.collisions, &f.counted.failed)
	if err != nil {
		return f, err
	}
	if f.ordersDepth, err = broker.depth(config.ordersQueue()); err != nil {
		return f, err
	}
	if f.billingDepth, err = broker.depth(config.billingQueue()); err != nil {
		return f, err
	}
	if f.outboxWaiting, err = outboxWaiting(ctx, db); err != nil {
		return f, err
	}
	if err = db.QueryRowContext(ctx, `SELECT count(*) FROM inbox_outbox_parked`).Scan(&f.parked); err != nil {
		return f, err
	}
	f.poison, err = broker.inspectPoisonQueue()
	return f, err
}

// reconcile prints what there is and returns an error that names everything that disagrees.
func reconcile(ctx context.Context, config config, db *sql.DB, broker *broker) error {
	f, err := look(ctx, config, db, broker)
	if err != nil {
		return fmt.Errorf("cannot reconcile: %w", err)
	}
	f.print()
	if err := errors.Join(f.disagreements(config.plan.expectation())...); err != nil {
		return fmt.Errorf("run %s does not reconcile:\n%w", config.name, err)
	}
	fmt.Printf("Run %s reconciles. The same flags look again; with -clean they remove it.\n", config.name)
	return nil
}

// print leaves it to the reader to add up. What a killed run had counted after its last line of progress is not in
// the observer's counts.
func (f found) print() {
	fmt.Printf("\nruns=%d ended_early=%d\n", f.runs, f.endedEarly)
	bound := ""
	if f.endedEarly > 0 {
		bound = " (at least)"
	}
	for _, line := range []struct {
		name  string
		value int64
		note  string
	}{
		{"published", f.counted.published, bound},
		{"deliveries", f.counted.deliveries(), bound},
		{"duplicates", f.counted.duplicates, bound},
		{"collision_deliveries", f.counted.collisions, bound},
		{"failed_deliveries", f.counted.failed, bound},
		{"accepted", f.entries - f.semanticEntries, ""},
		{"semantic_duplicates", f.semanticEntries, ""},
		{"collisions", f.evidence, ""},
		{"inbox_rows", f.entries, ""},
		{"effects", f.effects, ""},
		{"effects_cents", f.cents, ""},
		{"outbox_waiting", f.outboxWaiting, ""},
		{"billing_inbox_rows", f.billingEntries, ""},
		{"billing_effects", f.bills, ""},
		{"billing_effects_cents", f.billedCents, ""},
		{"billing_queue_depth", f.billingDepth, ""},
		{"poison_queue_depth", f.poison.depth, ""},
		{"poisoned_cents", f.poison.cents, ""},
		{"orders_queue_depth", f.ordersDepth, ""},
	} {
		fmt.Printf("%s=%d%s\n", line.name, line.value, line.note)
	}
}

// disagreements are the claims that must hold however often messages were published and delivered, and that
// do not.
func (f found) disagreements(expected expectation) []error {
	var problems []error
	claim := func(holds bool, format string, values ...any) {
		if !holds {
			problems = append(problems, fmt.Errorf("  "+format, values...))
		}
	}
	accepted := f.entries - f.semanticEntries
	claim(f.ordersPublished == expected.orders, "orders published: %d of %d", f.ordersPublished, expected.orders)
	claim(f.ordersDepth == 0, "messages left in the orders queue: %d", f.ordersDepth)
	claim(accepted == expected.orders, "accepted entries %d, different orders %d", accepted, expected.orders)
	claim(f.effects == accepted, "effects %d, accepted entries %d", f.effects, accepted)
	claim(f.distinctOrders == f.effects, "different orders with an effect %d, effects %d", f.distinctOrders, f.effects)
	claim(f.semanticEntries == expected.semantic, "semantic duplicates %d, published %d", f.semanticEntries, expected.semantic)
	claim(f.evidence == expected.collisions, "collisions in evidence %d, published %d", f.evidence, expected.collisions)
	claim(f.poison.collisions == f.evidence, "different collisions in the poison queue %d, in evidence %d", f.poison.collisions, f.evidence)
	claim(f.poison.others == 0, "messages in the poison queue that are no collisions: %d", f.poison.others)
	claim(f.cents+f.poison.cents == expected.cents, "money in effects %d and in the poison queue %d, published %d", f.cents, f.poison.cents, expected.cents)
	claim(f.outboxWaiting == 0 && f.parked == 0, "messages left in the outbox %d, parked %d", f.outboxWaiting, f.parked)
	claim(f.billingDepth == 0, "messages left in the billing queue: %d", f.billingDepth)
	claim(f.billingEntries == accepted, "billing entries %d, accepted orders %d", f.billingEntries, accepted)
	claim(f.bills == accepted, "billing effects %d, accepted orders %d", f.bills, accepted)
	claim(f.billedOrders == f.bills, "different orders billed %d, billing effects %d", f.billedOrders, f.bills)
	claim(f.billedCents == f.cents, "money billed %d, money in effects %d", f.billedCents, f.cents)
	claim(f.counted.accepted <= accepted, "deliveries observed as accepted %d, accepted entries %d", f.counted.accepted, accepted)

	// Without a run that ended early, the observer has seen everything.
	if f.endedEarly == 0 {
		claim(f.counted.published >= expected.publications, "published %d, planned %d", f.counted.published, expected.publications)
		claim(f.counted.deliveries()-f.counted.failed >= expected.publications, "deliveries that were settled %d, published %d", f.counted.deliveries()-f.counted.failed, expected.publications)
		claim(f.counted.duplicates >= expected.duplicates, "duplicates %d, published %d", f.counted.duplicates, expected.duplicates)
	}
	// And if nothing failed either, there was no reason for a second poisoned copy or for a lost answer.
	if f.endedEarly == 0 && f.counted.failed == 0 {
		claim(f.poison.depth == f.poison.collisions, "poison queue depth %d, different collisions in it %d", f.poison.depth, f.poison.collisions)
		claim(f.counted.accepted == accepted, "deliveries observed as accepted %d, accepted entries %d", f.counted.accepted, accepted)
	}
	return problems
}
