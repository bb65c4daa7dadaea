package inboxamqp

import "strings"

// ownedByBroker tells whether a header is part of the broker's own bookkeeping, or tells it where a message goes. It is
// read and never sent: sent as text it would be wrong in type, which closes the channel (CC, BCC) or breaks the
// bookkeeping, and each round through a poison queue would add to it.
func ownedByBroker(name string) bool {
	switch name {
	case "x-death", "x-delivery-count", "x-acquired-count", // dead-lettering and quorum queues
		"x-stream-offset",                                         // streams
		"x-received-from", "x-shovelled", "x-shovelled-timestamp", // federation and shovel
		"CC", "BCC": // sender-selected distribution
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}
