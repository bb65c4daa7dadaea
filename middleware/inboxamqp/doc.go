// Package inboxamqp is a marshaler for watermill-amqp with which a message keeps its identity at the broker's edge:
// when the producer is not Watermill, and when the broker adds headers of its own.
//
//	config := amqp.NewDurableQueueConfig(uri)
//	config.Marshaler = inboxamqp.Marshaler{}
//
// amqp.DefaultMarshaler fails on a header that is not a string. The subscriber then nacks, the broker delivers again,
// and so for ever; it meets exactly the messages that were dead-lettered (x-death) or redelivered by a quorum queue
// (x-delivery-count). Marshaler makes a message of every delivery. Whether it can be processed is for the inbox to
// say: a message without an identity comes out as unidentified, in the poison queue.
//
// Formats: AMQP 0-9-1 with RabbitMQ's field types (https://www.rabbitmq.com/docs/amqp-0-9-1-errata) as amqp091-go
// reads them, RabbitMQ's dead-letter headers (https://www.rabbitmq.com/docs/dlx) and the CloudEvents binding of AMQP
// (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/amqp-protocol-binding.md), whose attributes
// pass as headers with the prefix "cloudEvents:" or "cloudEvents_" in both directions.
package inboxamqp
