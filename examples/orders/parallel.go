package main

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// parallel subscribes several times and hands out everything on one channel. A subscription of watermill-amqp
// waits for the ack of each message before it delivers the next; the router handles the messages of one channel
// at the same time.
type parallel struct {
	message.Subscriber
	subscriptions int
}

func (p parallel) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	deliveries := make(chan *message.Message)
	var open sync.WaitGroup
	for range p.subscriptions {
		messages, err := p.Subscriber.Subscribe(ctx, topic)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		go func() {
			defer open.Done()
			for msg := range messages {
				deliveries <- msg
			}
		}()
	}
	go func() {
		open.Wait()
		close(deliveries)
	}()
	return deliveries, nil
}
