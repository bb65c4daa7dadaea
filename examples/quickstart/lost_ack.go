package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// losesFirstAck is a subscriber that does what a broker does when its client dies after the commit and before
// the ack: it never learns of the ack, and delivers the message again.
type losesFirstAck struct {
	message.Subscriber
}

func (s losesFirstAck) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	messages, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	deliveries := make(chan *message.Message)
	go func() {
		defer close(deliveries)
		ackLost := map[string]bool{}
		for msg := range messages {
			if !ackLost[msg.UUID] && deliver(deliveries, msg) {
				ackLost[msg.UUID] = true
				fmt.Printf("  %s  the ack is lost, the broker delivers the message again\n", msg.UUID)
			}
			if deliver(deliveries, msg) {
				msg.Ack()
			} else {
				msg.Nack()
			}
		}
	}()
	return deliveries, nil
}

// deliver hands out a copy of msg, which is what a delivery is, and tells whether it was acked.
func deliver(deliveries chan<- *message.Message, msg *message.Message) bool {
	delivery := msg.CopyWithContext()
	select {
	case deliveries <- delivery:
	case <-msg.Context().Done():
		return false
	}
	select {
	case <-delivery.Acked():
		return true
	case <-delivery.Nacked():
	case <-msg.Context().Done():
	}
	return false
}
