package sqlinbox_test

import (
	"context"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// processed is what Process returned.
type processed struct {
	receipt middleware.Receipt
	err     error
}

func processInBackground(l ledger, e middleware.Entry, effect func(context.Context) error) <-chan processed {
	result := make(chan processed, 1)
	go func() {
		receipt, err := l.Process(context.Background(), e, effect)
		result <- processed{receipt, err}
	}()
	return result
}

// heldEffect is an effect that waits in its transaction until finish is sent an error or nil.
type heldEffect struct {
	running chan struct{}
	finish  chan error
}

func newHeldEffect() heldEffect {
	return heldEffect{running: make(chan struct{}), finish: make(chan error, 1)}
}

func (h heldEffect) run(ctx context.Context) error {
	if err := effect(ctx); err != nil {
		return err
	}
	close(h.running)
	return <-h.finish
}
