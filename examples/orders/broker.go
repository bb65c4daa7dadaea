package main

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// logger is for the router and the connections. The inbox has none here: it would log an error for each of
// the collisions that this example makes on purpose.
var logger = watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))

// publisherConfig is for durable queues. A publication returns when the broker has confirmed it: the progress
// that the producer notes, and the ack of a poisoned message, rely on it.
func publisherConfig(config config) amqp.Config {
	c := amqp.NewDurableQueueConfig(config.amqp)
	c.Publish.ConfirmDelivery = true
	c.Publish.ChannelPoolSize = config.parallel
	return c
}

func subscriberConfig(config config) amqp.Config {
	c := amqp.NewDurableQueueConfig(config.amqp)
	c.Consume.Qos.PrefetchCount = 8 // for each subscription; the next message is there when one is acked
	return c
}

// broker looks at the queues of the run from outside.
type broker struct {
	connection *amqp091.Connection
	config     config
}

func openBroker(config config) (*broker, error) {
	connection, err := amqp091.Dial(config.amqp)
	if err != nil {
		return nil, withoutURL("cannot connect to RabbitMQ", err)
	}
	return &broker{connection: connection, config: config}, nil
}

func (b *broker) Close() error { return b.connection.Close() }

// depth is the number of messages in the queue that are not with a consumer.
func (b *broker) depth(queue string) (int64, error) {
	channel, err := b.connection.Channel()
	if err != nil {
		return 0, err
	}
	defer channel.Close()
	state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return 0, fmt.Errorf("cannot read the depth of %s: %w", queue, err)
	}
	return int64(state.Messages), nil
}

// waitUntilDrained returns when queues and outbox are empty and no delivery has come for a second.
func (b *broker) waitUntilDrained(ctx context.Context, db *sql.DB, tally *tally) error {
	const quiet, interval = time.Second, 100 * time.Millisecond
	last, since := tally.settledAnywhere(), time.Now()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		depth, err := b.left(ctx, db)
		if err != nil {
			return err
		}
		if now := tally.settledAnywhere(); depth > 0 || now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) >= quiet {
			return nil
		}
	}
}

// left is what is still on its way: in the queues of both ends, and in the outbox between them.
func (b *broker) left(ctx context.Context, db *sql.DB) (int64, error) {
	orders, err := b.depth(b.config.ordersQueue())
	if err != nil {
		return 0, err
	}
	waiting, err := outboxWaiting(ctx, db)
	if err != nil {
		return 0, err
	}
	billing, err := b.depth(b.config.billingQueue())
	return orders + waiting + billing, err
}

func (b *broker) deleteQueues() error {
	for _, queue := range []string{b.config.ordersQueue(), b.config.billingQueue(), b.config.poisonQueue()} {
		channel, err := b.connection.Channel()
		if err != nil {
			return err
		}
		if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
			return fmt.Errorf("cannot delete %s: %w", queue, err)
		}
		if err := channel.Close(); err != nil {
			return err
		}
	}
	return nil
}
