package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
)

// chunk is how many orders are published between two notes of the progress. A crash makes the producer publish
// up to a chunk of them again, which the consumer must not notice in its effects.
const chunk = 250

// produce publishes the orders that are not known to be published.
func produce(ctx context.Context, config config, db *sql.DB, tally *tally) error {
	publisher, err := amqp.NewPublisher(publisherConfig(config), logger)
	if err != nil {
		return withoutURL("cannot connect to RabbitMQ", err)
	}
	defer publisher.Close()

	next, err := nextOrder(ctx, db)
	if err != nil {
		return err
	}
	for next < config.plan.orders {
		end := min(next+chunk, config.plan.orders)
		var orders, followUps []*message.Message
		for number := next; number < end; number++ {
			o := config.plan.order(number)
			orders = append(orders, o.message())
			if followUp := o.followUpMessage(); followUp != nil {
				followUps = append(followUps, followUp)
			}
		}
		for _, messages := range [][]*message.Message{orders, followUps} {
			if err := publishAll(ctx, publisher, config, messages, tally); err != nil {
				return err
			}
		}
		// Only now: what is noted here must be at the broker.
		if err := setNextOrder(ctx, db, end); err != nil {
			return err
		}
		next = end
	}
	return nil
}

// publishAll publishes in parallel, because each publication waits for the broker's confirmation.
func publishAll(ctx context.Context, publisher message.Publisher, config config, messages []*message.Message, tally *tally) error {
	queue := make(chan *message.Message)
	failures := make(chan error, config.parallel)
	var workers sync.WaitGroup
	for range config.parallel {
		workers.Add(1)
		go func() {
			defer workers.Done()
			var failed error
			for msg := range queue {
				if failed == nil {
					failed = publish(ctx, publisher, config.ordersQueue(), msg, tally)
				}
			}
			if failed != nil {
				failures <- failed
			}
		}()
	}
	for _, msg := range messages {
		queue <- msg
	}
	close(queue)
	workers.Wait()
	close(failures)

	var all []error
	for failure := range failures {
		all = append(all, failure)
	}
	return errors.Join(all...)
}

// publish tries again for a while: the publisher reconnects by itself. A message whose confirmation got lost is
// published twice then, which is one more duplicate.
func publish(ctx context.Context, publisher message.Publisher, topic string, msg *message.Message, tally *tally) error {
	var err error
	for range 10 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err = publisher.Publish(topic, msg); err == nil {
			tally.published.Add(1)
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return fmt.Errorf("cannot publish %s: %w", msg.UUID, err)
}
