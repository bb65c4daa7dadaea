package sqlinbox

import (
	"context"
	"sync"
	"time"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// flights are the keys that this process is working on. A second delivery of one waits here and not in the
// database, so that any number of copies of a slow key hold one connection of the pool.
//
// It is a courtesy to the pool and decides nothing: other processes have flights of their own, and the
// insert is the arbiter.
type flights struct {
	mu     sync.Mutex
	flying map[flightKey]*flight
}

type flightKey struct {
	consumer string
	key      string
	business bool
}

type flight struct {
	landed chan struct{}
	known  bool // whether the key is in the database now; written before landed is closed
}

func newFlights() *flights {
	return &flights{flying: map[flightKey]*flight{}}
}

// takeOff waits until no other delivery of the entry's keys is under way here, at most until the deadline.
// When ok, the caller must call land with whether the key is in the database now.
func (f *flights) takeOff(ctx context.Context, entry middleware.Entry, deadline time.Time) (land func(known bool), ok bool) {
	// Always the message key first: two deliveries can then never wait for each other.
	landKey, ok := f.takeOffKey(ctx, flightKey{consumer: entry.Consumer, key: entry.MessageKey}, deadline)
	if !ok || entry.BusinessKey == "" {
		return landKey, ok
	}
	landBusinessKey, ok := f.takeOffKey(ctx, flightKey{consumer: entry.Consumer, key: entry.BusinessKey, business: true}, deadline)
	if !ok {
		landKey(false)
		return nil, false
	}
	return func(known bool) {
		landBusinessKey(known)
		landKey(known)
	}, true
}

func (f *flights) takeOffKey(ctx context.Context, key flightKey, deadline time.Time) (land func(known bool), ok bool) {
	for {
		other, land := f.register(key)
		if other == nil {
			return land, true
		}
		if !other.wait(ctx, deadline) {
			return nil, false
		}
		if other.known {
			// Whoever waited only has to read that, and need not queue up for it.
			return func(bool) {}, true
		}
	}
}

// register returns the flight that is in the way, or else a new one's land.
func (f *flights) register(key flightKey) (other *flight, land func(known bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other, ok := f.flying[key]; ok {
		return other, nil
	}
	own := &flight{landed: make(chan struct{})}
	f.flying[key] = own
	return nil, func(known bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.flying, key)
		own.known = known
		close(own.landed)
	}
}

func (f *flight) wait(ctx context.Context, deadline time.Time) bool {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-f.landed:
		return true
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
}
