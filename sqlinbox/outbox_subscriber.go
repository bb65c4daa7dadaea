package sqlinbox

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// outboxSubscriber reads the outbox of a SQLite database, row by row in its order, and marks a row when its message
// is acked. It holds no transaction in between: handlers go on meanwhile, also with a pool of one connection. Two at
// once deliver messages twice, with the same UUIDs.
type outboxSubscriber struct {
	db     *sql.DB
	table  string
	poll   time.Duration
	resend time.Duration
	logger watermill.LoggerAdapter

	closeOnce sync.Once
	closing   chan struct{}
	reading   sync.WaitGroup
}

func (s *outboxSubscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	ctx, cancel := context.WithCancel(ctx)
	s.reading.Add(2)
	go func() {
		defer s.reading.Done()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
		cancel()
	}()
	go func() {
		defer s.reading.Done()
		defer close(out)
		defer cancel()
		for ctx.Err() == nil {
			if !s.deliverNext(ctx, out) {
				sleep(ctx, s.poll)
			}
		}
	}()
	return out, nil
}

// Close ends all subscriptions.
func (s *outboxSubscriber) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	s.reading.Wait()
	return nil
}

// deliverNext reports whether it has delivered a message, so that the next one may wait already.
func (s *outboxSubscriber) deliverNext(ctx context.Context, out chan<- *message.Message) bool {
	var (
		offset            int64
		uuid              string
		payload, metadata []byte
	)
	err := s.db.QueryRowContext(ctx, strings.ReplaceAll(`
SELECT "offset", uuid, payload, metadata
FROM inbox_outbox
WHERE forwarded_at IS NULL
ORDER BY "offset"
LIMIT 1`, "inbox_outbox", s.table)).Scan(&offset, &uuid, &payload, &metadata)
	if err != nil {
		if err != sql.ErrNoRows && ctx.Err() == nil {
			s.logger.Error("Cannot read the outbox", err, nil)
		}
		return false
	}
	if !s.deliver(ctx, out, outboxMessage(offset, uuid, payload, metadata)) {
		return false
	}
	_, err = s.db.ExecContext(ctx, strings.ReplaceAll(`
UPDATE inbox_outbox
SET forwarded_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE "offset" = $1`, "inbox_outbox", s.table), offset)
	if err != nil {
		s.logger.Error("Cannot mark a forwarded row of the outbox; it will be forwarded again", err, watermill.LogFields{"offset": offset})
		return false
	}
	return true
}

// deliver sends copies of the message until one of them is acked.
func (s *outboxSubscriber) deliver(ctx context.Context, out chan<- *message.Message, msg *message.Message) bool {
	for {
		delivery := msg.Copy()
		delivery.SetContext(ctx)
		select {
		case out <- delivery:
		case <-ctx.Done():
			return false
		}
		select {
		case <-delivery.Acked():
			return true
		case <-delivery.Nacked():
			sleep(ctx, s.resend)
		case <-ctx.Done():
			return false
		}
	}
}
