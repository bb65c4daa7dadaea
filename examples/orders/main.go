// Command orders is a service on PostgreSQL and RabbitMQ: a producer publishes orders, with duplicates, collisions
// and semantic duplicates among them, a consumer places them behind the inbox, its outbox
// and a forwarder take each placed order to billing, which has an inbox of its own, and in the end a reconciliation
// reads from the database and from the broker whether everything came to what it had to.
//
// It can be killed at any moment and started again with the same flags, any number of times:
//
//	go run ./examples/orders -n 20000 -duplicates 0.2 -collisions 0.01 -semantic 0.01
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	config, err := parseFlags(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if config.clean {
		err = clean(ctx, config)
	} else {
		err = run(ctx, config)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, config config) error {
	db, err := openDatabase(config)
	if err != nil {
		return err
	}
	defer db.Close()
	unlock, err := lockRun(ctx, db, config)
	if err != nil {
		return err
	}
	defer unlock()
	if err := createSchema(ctx, db, config); err != nil {
		return err
	}
	broker, err := openBroker(config)
	if err != nil {
		return err
	}
	defer broker.Close()

	tally, err := startTally(ctx, db)
	if err != nil {
		return err
	}
	stopReports := tally.reportEvery(config.progress)
	err = serveUntilDrained(ctx, config, db, broker, tally)
	stopReports()
	if err != nil {
		return fmt.Errorf("stopped early, start again with the same flags to go on: %w", err)
	}
	if err := tally.finish(ctx); err != nil {
		return err
	}
	return reconcile(ctx, config, db, broker)
}

// serveUntilDrained serves until nothing is left. What a consumer still had when it was closed, a message that
// waits for its retry for example, is back in the queue then, and the next consumer gets it.
func serveUntilDrained(ctx context.Context, config config, db *sql.DB, broker *broker, tally *tally) error {
	for {
		if err := serve(ctx, config, db, broker, tally); err != nil {
			return err
		}
		if left, err := broker.left(ctx, db); left == 0 || err != nil {
			return err
		}
	}
}

func serve(ctx context.Context, config config, db *sql.DB, broker *broker, tally *tally) error {
	consumer, err := startConsumer(ctx, config, db, tally)
	if err != nil {
		return err
	}
	if err = produce(ctx, config, db, tally); err == nil {
		err = broker.waitUntilDrained(ctx, db, tally)
	}
	return errors.Join(err, consumer.Close())
}

func clean(ctx context.Context, config config) error {
	broker, err := openBroker(config)
	if err != nil {
		return err
	}
	defer broker.Close()
	if err := broker.deleteQueues(); err != nil {
		return err
	}
	if err := dropSchema(ctx, config); err != nil {
		return err
	}
	fmt.Printf("Removed the queues and the schema of %s.\n", config.name)
	return nil
}
