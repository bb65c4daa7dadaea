package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// Subject is a store under test, empty, with the means to look at what it keeps.
type Subject struct {
	// Store is what is tested. Required.
	Store middleware.Store

	// Effect writes one effect with this name in the transaction that ctx carries. Required.
	Effect func(ctx context.Context, name string) error
	// CountEffects counts the committed effects with this name. Required.
	CountEffects func(ctx context.Context, name string) (int, error)
	// SetResult sets the result reference in the transaction that ctx carries. Nil: the store has none, and
	// the claims about it are left out.
	SetResult func(ctx context.Context, reference string) error
}

// claim is one promise of a Store, and how to see whether it is kept.
type claim struct {
	name string
	// faults says what kind of store breaks it.
	faults string
	check  func(ctx context.Context, s Subject) error
}

// TestStore checks what middleware.Store promises. newSubject returns a subject of its own for each claim,
// on an empty database; it may be called from several tests at once.
func TestStore(t *testing.T, newSubject func(t *testing.T) Subject) {
	t.Helper()
	for _, c := range claims {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), claimTimeout)
			defer cancel()
			if err := c.check(ctx, newSubject(t)); err != nil {
				t.Fatalf("%v\nwhat usually breaks it: %s", err, c.faults)
			}
		})
	}
}

// claimTimeout ends a store that waits for ever.
const claimTimeout = time.Minute

const effectName = "effect"

func testEntry(consumer, key string) middleware.Entry {
	return middleware.Entry{
		Consumer:    consumer,
		MessageKey:  key,
		PayloadHash: "v1:j:sha256:suite:first",
		EventType:   "OrderPlaced",
		Source:      "/shop",
		ReceivedAt:  time.Now(),
	}
}

// run is the plain effect of a delivery.
func (s Subject) run(ctx context.Context) error {
	return s.Effect(ctx, effectName)
}

// process delivers entry and requires a disposition.
func (s Subject) process(ctx context.Context, entry middleware.Entry, want middleware.Disposition) (middleware.Receipt, error) {
	receipt, err := s.Store.Process(ctx, entry, s.run)
	if err != nil {
		return receipt, fmt.Errorf("delivery of key %q to consumer %q failed: %w", entry.MessageKey, entry.Consumer, err)
	}
	if receipt.Disposition != want {
		return receipt, fmt.Errorf("delivery of key %q to consumer %q came to disposition %d, want %d", entry.MessageKey, entry.Consumer, receipt.Disposition, want)
	}
	return receipt, nil
}

func (s Subject) wantEffects(ctx context.Context, want int) error {
	got, err := s.CountEffects(context.WithoutCancel(ctx), effectName)
	if err != nil {
		return fmt.Errorf("cannot count the effects: %w", err)
	}
	if got != want {
		return fmt.Errorf("%d effects, want %d", got, want)
	}
	return nil
}

// failFirst delivers with an effect that writes and then ends as end does, and requires that nothing is
// kept: the next delivery of the same key is new.
func (s Subject) failFirst(ctx context.Context, end func(ctx context.Context) error) error {
	ended := make(chan error, 1)
	go func() {
		err := errors.New("the goroutine ended")
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v", r)
			}
			ended <- err
		}()
		_, err = s.Store.Process(ctx, testEntry("billing", "1"), func(ctx context.Context) error {
			if err := s.run(ctx); err != nil {
				return err
			}
			return end(ctx)
		})
	}()
	if err := <-ended; err == nil {
		return errors.New("the failed delivery was reported as a success")
	}
	if err := s.wantEffects(ctx, 0); err != nil {
		return fmt.Errorf("after the failed delivery: %w", err)
	}
	if _, err := s.process(ctx, testEntry("billing", "1"), middleware.Accepted); err != nil {
		return fmt.Errorf("after the failed delivery: %w", err)
	}
	return s.wantEffects(ctx, 1)
}
