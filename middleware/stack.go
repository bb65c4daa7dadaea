package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// StackConfig configures NewStack.
type StackConfig struct {
	// Inbox is the innermost of the stack. Required.
	Inbox *Inbox

	// PoisonQueue takes the messages whose handler still fails after its retries. Default: the inbox's
	// own. With neither, such a message is nacked.
	PoisonQueue PoisonQueue

	// MaxRetries is how often a failed delivery is tried again before it is poisoned or, when the failure
	// is transient, nacked. Default: 3. Negative: never.
	MaxRetries int
	// InitialInterval is the wait before the first retry; it doubles up to MaxInterval. Defaults: 100 ms
	// and 10 s. They also pace the redeliveries of a message that is nacked.
	InitialInterval time.Duration
	MaxInterval     time.Duration

	// Timeout limits one call of the handler. Zero: no limit.
	Timeout time.Duration

	// Logger gets a line for each retry. Default: watermill.NopLogger.
	Logger watermill.LoggerAdapter
}

func (c *StackConfig) setDefaults() {
	if c.Inbox != nil && !c.PoisonQueue.configured() {
		c.PoisonQueue = c.Inbox.config.PoisonQueue
	}
	if c.MaxRetries == 0 {
		c.MaxRetries = 3
	}
	c.MaxRetries = max(c.MaxRetries, 0)
	if c.InitialInterval == 0 {
		c.InitialInterval = 100 * time.Millisecond
	}
	if c.MaxInterval == 0 {
		c.MaxInterval = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}

// Validate returns every problem of the configuration at once.
func (c StackConfig) Validate() error {
	problems := []error{c.PoisonQueue.validate()}
	if c.Inbox == nil {
		problems = append(problems, errors.New("inbox is nil; set StackConfig.Inbox to what NewInbox returns"))
	}
	for _, setting := range []struct {
		name  string
		value time.Duration
	}{
		{"InitialInterval", c.InitialInterval},
		{"MaxInterval", c.MaxInterval},
		{"Timeout", c.Timeout},
	} {
		if setting.value < 0 {
			problems = append(problems, fmt.Errorf("%s %s is negative", setting.name, setting.value))
		}
	}
	return errors.Join(problems...)
}

// NewStack returns the recommended middlewares in their order, for router.AddMiddleware(stack...):
// Recoverer, PoisonQueue, Retry, Recoverer, Timeout (if set), Inbox.
//
//   - A transient failure is retried and then nacked; it is never poisoned.
//   - A collision and the like go to the inbox's poison queue once and are never retried.
//   - A failure of the handler, a panic included, is poisoned after its retries.
//   - A mistake in the set-up (wrong order, no outbox) is neither retried nor poisoned: the message is nacked
//     until somebody mends it.
func NewStack(config StackConfig) ([]message.HandlerMiddleware, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid stack config: %w", err)
	}

	retry := wmmiddleware.Retry{
		MaxRetries:          config.MaxRetries,
		InitialInterval:     config.InitialInterval,
		MaxInterval:         config.MaxInterval,
		Multiplier:          2,
		RandomizationFactor: 0.5,
		ShouldRetry:         func(params wmmiddleware.RetryParams) bool { return isRetryable(params.Err) },
		// Without it the second attempt would run under the context that the first one's timeout ended.
		ResetContextOnRetry: true,
		Logger:              config.Logger,
	}

	stack := []message.HandlerMiddleware{wmmiddleware.Recoverer}
	if config.PoisonQueue.configured() {
		poisonQueue, err := wmmiddleware.PoisonQueueWithFilter(config.PoisonQueue.Publisher, config.PoisonQueue.Topic, belongsIntoPoisonQueue)
		if err != nil {
			return nil, err
		}
		stack = append(stack, poisonQueue)
	}
	// The second Recoverer makes an error of a panic before Retry and PoisonQueue, which see only errors.
	stack = append(stack, retry.Middleware, wmmiddleware.Recoverer)
	if config.Timeout > 0 {
		stack = append(stack, wmmiddleware.Timeout(config.Timeout))
	}
	return append(stack, config.Inbox.Middleware), nil
}

// isRetryable: what is poison or a mistake in the set-up will not get better by being called again.
func isRetryable(err error) bool {
	return IsTransient(err) || !IsPoison(err) && !isMisuse(err)
}

func belongsIntoPoisonQueue(err error) bool {
	switch {
	case IsTransient(err), isMisuse(err), errors.Is(err, context.Canceled):
		return false
	default:
		return true
	}
}

func isMisuse(err error) bool {
	for _, misuse := range []error{ErrNestedInbox, ErrNoHandlerName, ErrNoOutbox, ErrAckedBeforeCommit} {
		if errors.Is(err, misuse) {
			return true
		}
	}
	var marked interface{ Misuse() bool }
	return errors.As(err, &marked) && marked.Misuse()
}
