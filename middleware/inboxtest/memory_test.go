package inboxtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/watermill-inbox/watermill-inbox/middleware/inboxtest"
)

func TestMemoryKeepsThePromisesOfAStore(t *testing.T) {
	t.Parallel()
	inboxtest.TestStore(t, func(*testing.T) inboxtest.Subject {
		memory := inboxtest.NewMemory(5 * time.Second)
		return inboxtest.Subject{
			Store:  memory,
			Effect: memory.Effect,
			CountEffects: func(_ context.Context, name string) (int, error) {
				count := 0
				for _, effect := range memory.Effects() {
					if effect == name {
						count++
					}
				}
				return count, nil
			},
			SetResult: memory.SetResult,
		}
	})
}
