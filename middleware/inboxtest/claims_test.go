package inboxtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// table is what a broken store writes to: each method is a transaction that commits at once.
type table struct {
	mu      sync.Mutex
	marks   map[string]middleware.StoredEntry
	effects int
}

func (t *table) mark(key string, entry middleware.Entry) (isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.marks[key]; known {
		return false
	}
	t.marks[key] = middleware.StoredEntry{MessageKey: entry.MessageKey, PayloadHash: entry.PayloadHash, ProcessedAt: time.Now()}
	return true
}

func (t *table) find(key string) (middleware.StoredEntry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stored, ok := t.marks[key]
	return stored, ok
}

func (t *table) keep(effects int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.effects += effects
}

// storeFunc is a Store that is one function.
type storeFunc func(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (middleware.Receipt, error)

func (f storeFunc) Process(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (middleware.Receipt, error) {
	return f(ctx, entry, effect)
}

type pendingKey struct{}

// buffered runs the effect and returns how many effects its transaction would commit.
func buffered(ctx context.Context, effect func(ctx context.Context) error) (int, error) {
	pending := 0
	err := effect(context.WithValue(ctx, pendingKey{}, &pending))
	return pending, err
}

func known(stored middleware.StoredEntry) middleware.Receipt {
	return middleware.Receipt{Disposition: middleware.KnownByKey, Stored: stored}
}

var accepted = middleware.Receipt{Disposition: middleware.Accepted}

// brokenStores are the stores that people write, each with its fault, and the claim that names it.
var brokenStores = []struct {
	fault string
	claim string
	store func(t *table) storeFunc
}{
	{
		fault: "check, then insert",
		claim: "of many concurrent deliveries of one key one runs the effect",
		store: func(t *table) storeFunc {
			return func(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (middleware.Receipt, error) {
				key := entry.Consumer + "\x00" + entry.MessageKey
				if stored, ok := t.find(key); ok {
					return known(stored), nil
				}
				time.Sleep(time.Millisecond) // the way to the database and back
				effects, err := buffered(ctx, effect)
				if err != nil {
					return middleware.Receipt{}, err
				}
				t.keep(effects)
				t.mark(key, entry)
				return accepted, nil
			}
		},
	},
	{
		fault: "mark before the effect, in another transaction",
		claim: "an error of the effect keeps neither entry nor effect, and is found in the error",
		store: func(t *table) storeFunc {
			return func(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (middleware.Receipt, error) {
				key := entry.Consumer + "\x00" + entry.MessageKey
				if !t.mark(key, entry) {
					stored, _ := t.find(key)
					return known(stored), nil
				}
				effects, err := buffered(ctx, effect)
				if err != nil {
					return middleware.Receipt{}, err
				}
				t.keep(effects)
				return accepted, nil
			}
		},
	},
	{
		fault: "mark after the effect, in another transaction",
		claim: "a delivery that is cancelled in mid-effect is accepted with its effect or keeps nothing",
		store: func(t *table) storeFunc {
			return func(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (middleware.Receipt, error) {
				key := entry.Consumer + "\x00" + entry.MessageKey
				if stored, ok := t.find(key); ok {
					return known(stored), nil
				}
				effects, err := buffered(ctx, effect)
				if err != nil {
					return middleware.Receipt{}, err
				}
				t.keep(effects)
				if err := ctx.Err(); err != nil {
					return middleware.Receipt{}, err
				}
				t.mark(key, entry)
				return accepted, nil
			}
		},
	},
	{
		fault: "a key without the consumer",
		claim: "consumers do not see each other's entries",
		store: func(t *table) storeFunc {
			return oneTransaction(t, func(entry middleware.Entry) string { return entry.MessageKey }, false)
		},
	},
	{
		fault: "consumer and key joined by a separator that both may contain",
		claim: "consumers do not see each other's entries",
		store: func(t *table) storeFunc {
			return oneTransaction(t, func(entry middleware.Entry) string { return entry.Consumer + "|" + entry.MessageKey }, false)
		},
	},
	{
		fault: "an ack when the commit failed",
		claim: "a delivery that is cancelled in mid-effect is accepted with its effect or keeps nothing",
		store: func(t *table) storeFunc {
			return oneTransaction(t, func(entry middleware.Entry) string { return entry.Consumer + "\x00" + entry.MessageKey }, true)
		},
	},
	{
		fault: "insert after the effect, and catch the unique violation",
		claim: "while the effect runs, another delivery of the key neither runs it nor is known",
		store: func(t *table) storeFunc {
			return func(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (middleware.Receipt, error) {
				key := entry.Consumer + "\x00" + entry.MessageKey
				effects, err := buffered(ctx, effect)
				if err != nil {
					return middleware.Receipt{}, err
				}
				if !t.mark(key, entry) {
					stored, _ := t.find(key)
					return known(stored), nil
				}
				t.keep(effects)
				return accepted, nil
			}
		},
	},
}

// oneTransaction is a store whose deliveries run one after the other, each in one transaction.
func oneTransaction(t *table, keyOf func(middleware.Entry) string, ackOnCommitError bool) storeFunc {
	var one sync.Mutex
	return func(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (middleware.Receipt, error) {
		one.Lock()
		defer one.Unlock()
		if stored, ok := t.find(keyOf(entry)); ok {
			return known(stored), nil
		}
		effects, err := buffered(ctx, effect)
		if err != nil {
			return middleware.Receipt{}, err
		}
		if err := ctx.Err(); err != nil {
			if ackOnCommitError {
				return accepted, nil
			}
			return middleware.Receipt{}, err
		}
		t.keep(effects)
		t.mark(keyOf(entry), entry)
		return accepted, nil
	}
}

func TestABrokenStoreFailsAtTheClaimThatNamesItsFault(t *testing.T) {
	t.Parallel()
	for _, broken := range brokenStores {
		t.Run(broken.fault, func(t *testing.T) {
			t.Parallel()
			position := slices.IndexFunc(claims, func(c claim) bool { return c.name == broken.claim })
			require.GreaterOrEqual(t, position, 0, "no claim is named %q", broken.claim)

			table := &table{marks: map[string]middleware.StoredEntry{}}
			subject := Subject{
				Store: broken.store(table),
				Effect: func(ctx context.Context, _ string) error {
					pending, ok := ctx.Value(pendingKey{}).(*int)
					if !ok {
						return errors.New("no transaction")
					}
					*pending++
					return nil
				},
				CountEffects: func(context.Context, string) (int, error) {
					table.mu.Lock()
					defer table.mu.Unlock()
					return table.effects, nil
				},
			}
			ctx, cancel := context.WithTimeout(t.Context(), claimTimeout)
			defer cancel()
			require.Error(t, claims[position].check(ctx, subject), "the suite does not find the fault")
		})
	}
}
