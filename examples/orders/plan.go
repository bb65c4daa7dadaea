package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/ThreeDotsLabs/watermill/message"
)

// plan says which messages are published. The same plan always makes the same messages: after a crash the
// producer publishes some of them again, and must not make them up anew.
type plan struct {
	orders                           int
	duplicates, collisions, semantic float64
	seed                             uint64
}

func (p plan) description() string {
	return fmt.Sprintf("-n %d -duplicates %g -collisions %g -semantic %g -seed %d",
		p.orders, p.duplicates, p.collisions, p.semantic, p.seed)
}

type followUpKind int

const (
	none followUpKind = iota
	duplicate
	collision
	semanticDuplicate
)

// order is one order and what comes after its message.
type order struct {
	number   int
	customer int
	cents    int64

	followUp      followUpKind
	collidedCents int64 // what the colliding message says instead of cents
}

func (p plan) order(number int) order {
	random := rand.New(rand.NewPCG(p.seed, uint64(number)))
	o := order{number: number, customer: random.IntN(1000), cents: 100 + random.Int64N(50_000)}
	switch draw := random.Float64(); {
	case draw < p.duplicates:
		o.followUp = duplicate
	case draw < p.duplicates+p.collisions:
		o.followUp = collision
		o.collidedCents = o.cents + 1 + random.Int64N(50_000)
	case draw < p.duplicates+p.collisions+p.semantic:
		o.followUp = semanticDuplicate
	}
	return o
}

// message is the order as it is published first.
func (o order) message() *message.Message {
	return o.newMessage("placed", fmt.Sprintf(`{"order":"O-%d","customer":"C-%d","cents":%d}`, o.number, o.customer, o.cents))
}

// followUpMessage is what is published later, or nil.
func (o order) followUpMessage() *message.Message {
	switch o.followUp {
	case duplicate:
		// The same order as another program would write it. The hash is of the content, not of its spelling.
		return o.newMessage("placed", fmt.Sprintf(`{ "cents": %d, "customer": "C-%d", "order": "O-%d" }`, o.cents, o.customer, o.number))
	case collision:
		return o.newMessage("placed", fmt.Sprintf(`{"order":"O-%d","customer":"C-%d","cents":%d}`, o.number, o.customer, o.collidedCents))
	case semanticDuplicate:
		return o.newMessage("placed-again", fmt.Sprintf(`{"order":"O-%d","customer":"C-%d","cents":%d}`, o.number, o.customer, o.cents))
	default:
		return nil
	}
}

// newMessage makes a CloudEvent in the spelling of its AMQP binding.
func (o order) newMessage(event, payload string) *message.Message {
	id := fmt.Sprintf("order-%d-%s", o.number, event)
	msg := message.NewMessage(id, message.Payload(payload))
	msg.Metadata.Set("cloudEvents:specversion", "1.0")
	msg.Metadata.Set("cloudEvents:id", id)
	msg.Metadata.Set("cloudEvents:source", "/examples/orders")
	msg.Metadata.Set("cloudEvents:type", "order.placed")
	msg.Metadata.Set("contract_version", contractVersion)
	msg.Metadata.Set("tenant", fmt.Sprintf("tenant-%d", o.customer%3))
	return msg
}

// expectation is what a plan comes to, however often its messages are delivered and in whatever order.
type expectation struct {
	orders, publications             int64
	duplicates, collisions, semantic int64

	// cents is the money of every different message content. Of two that collide, the first to be delivered is
	// accepted and the other one poisoned: which one that is, nobody knows, but no money is lost between them.
	cents int64
}

func (p plan) expectation() expectation {
	expected := expectation{orders: int64(p.orders), publications: int64(p.orders)}
	for number := range p.orders {
		o := p.order(number)
		expected.cents += o.cents
		switch o.followUp {
		case none:
			continue
		case duplicate:
			expected.duplicates++
		case collision:
			expected.collisions++
			expected.cents += o.collidedCents
		case semanticDuplicate:
			expected.semantic++
		}
		expected.publications++
	}
	return expected
}
