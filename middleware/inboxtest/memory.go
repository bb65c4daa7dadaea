package inboxtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// Memory is a Store without a database. Entries live as long as the value; it is for tests only.
//
// Its transaction covers what is given to Memory itself: the entry, Effect and SetResult. What a handler does
// elsewhere is not rolled back.
//
// The zero value is not usable; use NewMemory. It is safe for concurrent use.
type Memory struct {
	wait time.Duration

	mu         sync.Mutex
	entries    map[memoryKey]*memoryEntry
	businesses map[memoryKey]*memoryEntry
	horizons   map[string]time.Time
	collisions map[memoryCollision]*memoryEvidence
	effects    []string
	changed    chan struct{} // closed and replaced whenever a unit of work ends
}

type memoryKey struct{ consumer, key string }

type memoryEntry struct {
	entry  middleware.Entry
	stored middleware.StoredEntry
	held   bool // the effect is still running
}

type memoryCollision struct{ consumer, key, hash string }

type memoryEvidence struct {
	deliveries int
	redriven   int
}

type memoryUnit struct {
	entry   *memoryEntry
	effects []string
}

type memoryUnitKey struct{}

// ErrNoUnit is returned by Effect and SetResult outside of Process.
var ErrNoUnit = errors.New("no unit of work of this store in the context; call it from the effect of Process")

var _ middleware.CollisionStore = (*Memory)(nil)

// NewMemory returns an empty store. A delivery waits at most wait for another one of its key; zero waits
// not at all.
func NewMemory(wait time.Duration) *Memory {
	return &Memory{
		wait:       wait,
		entries:    map[memoryKey]*memoryEntry{},
		businesses: map[memoryKey]*memoryEntry{},
		horizons:   map[string]time.Time{},
		collisions: map[memoryCollision]*memoryEvidence{},
		changed:    make(chan struct{}),
	}
}

// Process implements middleware.Store.
func (m *Memory) Process(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (middleware.Receipt, error) {
	deadline := time.NewTimer(m.wait)
	defer deadline.Stop()
	for {
		receipt, own, changed := m.begin(entry)
		switch {
		case own != nil:
			return m.run(ctx, own, effect)
		case changed == nil:
			return receipt, nil
		}
		select {
		case <-changed:
		case <-deadline.C:
			return middleware.Receipt{Disposition: middleware.Held}, nil
		case <-ctx.Done():
			return middleware.Receipt{}, ctx.Err()
		}
	}
}

// begin takes the keys of the entry, or tells what is in the way: a receipt, or a change to wait for.
func (m *Memory) begin(entry middleware.Entry) (receipt middleware.Receipt, own *memoryEntry, changed chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := memoryKey{entry.Consumer, entry.MessageKey}
	business := memoryKey{entry.Consumer, entry.BusinessKey}

	if other, ok := m.entries[key]; ok {
		if other.held {
			return receipt, nil, m.changed
		}
		return middleware.Receipt{Disposition: middleware.KnownByKey, Stored: other.stored}, nil, nil
	}
	own = &memoryEntry{entry: entry, held: true, stored: middleware.StoredEntry{
		MessageKey:  entry.MessageKey,
		PayloadHash: entry.PayloadHash,
		ReceivedAt:  entry.ReceivedAt,
		ProcessedAt: time.Now(),
	}}
	if entry.BusinessKey != "" {
		if first, ok := m.businesses[business]; ok {
			if first.held {
				return receipt, nil, m.changed
			}
			own.held = false
			own.stored.DuplicateOf, own.stored.ResultReference = first.stored.MessageKey, first.stored.ResultReference
			m.entries[key] = own
			return middleware.Receipt{Disposition: middleware.KnownByBusinessKey, Stored: first.stored}, nil, nil
		}
	}
	if !entry.OccurredAt.IsZero() && !entry.OccurredAt.After(m.horizons[entry.Consumer]) {
		return middleware.Receipt{Disposition: middleware.PastHorizon}, nil, nil
	}

	m.entries[key] = own
	if entry.BusinessKey != "" {
		m.businesses[business] = own
	}
	return receipt, own, nil
}

// run runs the effect and keeps everything or nothing, also when the effect panics or ends its goroutine.
func (m *Memory) run(ctx context.Context, own *memoryEntry, effect func(ctx context.Context) error) (middleware.Receipt, error) {
	unit := &memoryUnit{entry: own}
	keep := false
	defer func() { m.end(unit, keep) }()

	if err := effect(context.WithValue(ctx, memoryUnitKey{}, unit)); err != nil {
		return middleware.Receipt{}, err
	}
	if err := ctx.Err(); err != nil {
		return middleware.Receipt{}, err
	}
	keep = true
	return middleware.Receipt{Disposition: middleware.Accepted}, nil
}

func (m *Memory) end(unit *memoryUnit, keep bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry := unit.entry.entry
	if keep {
		unit.entry.held = false
		m.effects = append(m.effects, unit.effects...)
	} else {
		delete(m.entries, memoryKey{entry.Consumer, entry.MessageKey})
		if entry.BusinessKey != "" {
			delete(m.businesses, memoryKey{entry.Consumer, entry.BusinessKey})
		}
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// Effect writes one effect into the unit of work that ctx carries: it counts if the unit is kept.
func (m *Memory) Effect(ctx context.Context, effect string) error {
	unit, ok := ctx.Value(memoryUnitKey{}).(*memoryUnit)
	if !ok {
		return ErrNoUnit
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	unit.effects = append(unit.effects, effect)
	return nil
}

// SetResult sets the result reference of the entry in whose unit of work ctx is.
func (m *Memory) SetResult(ctx context.Context, reference string) error {
	unit, ok := ctx.Value(memoryUnitKey{}).(*memoryUnit)
	if !ok {
		return ErrNoUnit
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	unit.entry.stored.ResultReference = reference
	return nil
}

// Effects are the effects of all units that were kept, in their order.
func (m *Memory) Effects() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.effects...)
}

// Entries is the number of entries, those of semantic duplicates included.
func (m *Memory) Entries() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// SetHorizon forgets the entries of a consumer that were processed up to the instant, as a purge does.
func (m *Memory) SetHorizon(consumer string, horizon time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.horizons[consumer] = horizon
	for key, entry := range m.entries {
		if key.consumer != consumer || entry.held || entry.stored.ProcessedAt.After(horizon) {
			continue
		}
		delete(m.entries, key)
		delete(m.businesses, memoryKey{consumer, entry.entry.BusinessKey})
	}
}

// RecordCollision implements middleware.CollisionStore.
func (m *Memory) RecordCollision(ctx context.Context, collision middleware.Collision, publish func(ctx context.Context) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := memoryCollision{collision.Consumer, collision.MessageKey, collision.PayloadHash}
	evidence, known := m.collisions[key]
	if !known || evidence.redriven != collision.Redriven {
		if err := publish(ctx); err != nil {
			return err
		}
	}
	if !known {
		evidence = &memoryEvidence{}
		m.collisions[key] = evidence
	}
	evidence.deliveries++
	evidence.redriven = collision.Redriven
	return nil
}

// CollisionDeliveries is how often the collision was delivered.
func (m *Memory) CollisionDeliveries(consumer, messageKey, payloadHash string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if evidence, ok := m.collisions[memoryCollision{consumer, messageKey, payloadHash}]; ok {
		return evidence.deliveries
	}
	return 0
}
