//go:build !embedded

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
