package middleware

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

const (
	// RedrivenKey is the metadata name of how often a message was redriven. It decides no outcome.
	RedrivenKey = "inbox_redriven"
	// RedriveHistoryKey is the metadata name of the last redrives, as a JSON array: when, who, why, and the
	// evidence that the poisoned message had.
	RedriveHistoryKey = "inbox_redrive_history"

	redriveSeenKey = "inbox_redrive_seen"
)

const (
	maxHistory     = 5
	maxHistoryText = 200
	maxSeenRuns    = 8
	maxRedriven    = 1_000_000_000
)

// poisonKeys is all metadata that poisoning adds to a message.
var poisonKeys = []string{
	wmmiddleware.ReasonForPoisonedKey, wmmiddleware.PoisonedTopicKey,
	wmmiddleware.PoisonedHandlerKey, wmmiddleware.PoisonedSubscriberKey,
	PoisonOutcomeKey, PoisonConsumerKey, PoisonMessageKeyKey, PoisonPayloadHashKey, PoisonStoredHashKey,
	PoisonAcceptedAtKey, PoisonResultReferenceKey, PoisonedAtKey,
}

type redriveHistoryEntry struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Why      string    `json:"why"`
	Action   string    `json:"action"`
	Outcome  string    `json:"outcome"`
	Consumer string    `json:"consumer"`
	Poisoned string    `json:"poisoned"`
}

// withoutPoison is the message as it was before it was poisoned, with what happened moved into its history.
func withoutPoison(msg *message.Message, record RedriveRecord) *message.Message {
	clean := msg.Copy()
	history := append(redriveHistory(msg), redriveHistoryEntry{
		At:       record.At,
		By:       cut(record.Operator),
		Why:      cut(record.Reason),
		Action:   string(record.Action),
		Outcome:  cut(string(record.Outcome)),
		Consumer: cut(record.Consumer),
		Poisoned: cut(msg.Metadata.Get(wmmiddleware.ReasonForPoisonedKey)),
	})
	history = history[max(0, len(history)-maxHistory):]

	for _, name := range poisonKeys {
		delete(clean.Metadata, name)
	}
	if text, err := json.Marshal(history); err == nil {
		clean.Metadata.Set(RedriveHistoryKey, string(text))
	}
	clean.Metadata.Set(RedrivenKey, strconv.Itoa(redrivenCount(msg)+1))
	return clean
}

// redriveHistory reads the history that a message brings along. It may come from a hostile producer: what
// cannot be read, or is longer than this library writes it, is dropped.
func redriveHistory(msg *message.Message) []redriveHistoryEntry {
	text := msg.Metadata.Get(RedriveHistoryKey)
	if len(text) > 16<<10 {
		return nil
	}
	var history []redriveHistoryEntry
	if json.Unmarshal([]byte(text), &history) != nil {
		return nil
	}
	history = history[max(0, len(history)-maxHistory):]
	for i, entry := range history {
		history[i].By, history[i].Why, history[i].Action = cut(entry.By), cut(entry.Why), cut(entry.Action)
		history[i].Outcome, history[i].Consumer, history[i].Poisoned = cut(entry.Outcome), cut(entry.Consumer), cut(entry.Poisoned)
	}
	return history
}

// redrivenCount is what the message says of itself, which may be anything.
func redrivenCount(msg *message.Message) int {
	count, err := strconv.Atoi(msg.Metadata.Get(RedrivenKey))
	if err != nil {
		return 0
	}
	return min(max(count, 0), maxRedriven)
}

func cut(text string) string {
	if len(text) > maxHistoryText {
		text = text[:maxHistoryText]
	}
	return strings.ToValidUTF8(text, "")
}

// seenByRun tells whether a run of Redrive has published the message before.
func seenByRun(msg *message.Message, run string) bool {
	return slices.Contains(strings.Fields(msg.Metadata.Get(redriveSeenKey)), run)
}

// markSeen keeps the last few runs, so that runs at the same time do not undo each other's marks.
func markSeen(msg *message.Message, run string) *message.Message {
	marked := msg.Copy()
	runs := append(strings.Fields(msg.Metadata.Get(redriveSeenKey)), run)
	marked.Metadata.Set(redriveSeenKey, strings.Join(runs[max(0, len(runs)-maxSeenRuns):], " "))
	return marked
}
