package main

import (
	"encoding/json"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// poisoned is what is in the poison queue.
type poisoned struct {
	depth      int64 // messages, copies included
	collisions int64 // different ones: message key and payload hash
	others     int64 // poisoned for any other reason
	cents      int64 // money in the different collisions
}

// inspectPoisonQueue reads the queue without taking anything off: what is not acked goes back when the
// channel is closed.
func (b *broker) inspectPoisonQueue() (poisoned, error) {
	depth, err := b.depth(b.config.poisonQueue())
	if err != nil || depth == 0 {
		return poisoned{}, err
	}
	channel, err := b.connection.Channel()
	if err != nil {
		return poisoned{}, err
	}
	defer channel.Close()
	deliveries, err := channel.Consume(b.config.poisonQueue(), "", false, false, false, false, nil)
	if err != nil {
		return poisoned{}, fmt.Errorf("cannot read the poison queue: %w", err)
	}

	p := poisoned{depth: depth}
	seen := map[[2]string]bool{}
	for range depth {
		select {
		case delivery, ok := <-deliveries:
			if !ok {
				return p, fmt.Errorf("the connection to the poison queue was lost")
			}
			if err := p.add(delivery, seen); err != nil {
				return p, err
			}
		case <-time.After(10 * time.Second):
			return p, fmt.Errorf("somebody else reads the poison queue too: it has %d messages, but gives fewer", depth)
		}
	}
	return p, nil
}

func (p *poisoned) add(delivery amqp091.Delivery, seen map[[2]string]bool) error {
	evidence := func(name string) string {
		value, _ := delivery.Headers[name].(string)
		return value
	}
	if evidence(middleware.PoisonOutcomeKey) != string(middleware.OutcomeCollision) {
		p.others++
		return nil
	}
	identity := [2]string{evidence(middleware.PoisonMessageKeyKey), evidence(middleware.PoisonPayloadHashKey)}
	if seen[identity] {
		return nil
	}
	seen[identity] = true
	var order struct{ Cents int64 }
	if err := json.Unmarshal(delivery.Body, &order); err != nil {
		return fmt.Errorf("a poisoned message has changed: %w", err)
	}
	p.collisions++
	p.cents += order.Cents
	return nil
}
