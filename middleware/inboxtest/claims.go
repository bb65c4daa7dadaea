package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

var errBroken = errors.New("the handler is broken")

var claims = []claim{
	{
		name:   "a new key is accepted and its effect is kept",
		faults: "the effect does not run in a transaction that is committed",
		check: func(ctx context.Context, s Subject) error {
			if _, err := s.process(ctx, testEntry("billing", "1"), middleware.Accepted); err != nil {
				return err
			}
			return s.wantEffects(ctx, 1)
		},
	},
	{
		name:   "a known key does not run the effect again",
		faults: "the key is not unique, or it is recorded in a transaction that is not committed",
		check: func(ctx context.Context, s Subject) error {
			if _, err := s.process(ctx, testEntry("billing", "1"), middleware.Accepted); err != nil {
				return err
			}
			for range 3 {
				if _, err := s.process(ctx, testEntry("billing", "1"), middleware.KnownByKey); err != nil {
					return err
				}
			}
			return s.wantEffects(ctx, 1)
		},
	},
	{
		name:   "the receipt of a known key shows the entry that was accepted first, unchanged",
		faults: "the entry is overwritten by a later delivery",
		check: func(ctx context.Context, s Subject) error {
			first := testEntry("billing", "1")
			if _, err := s.process(ctx, first, middleware.Accepted); err != nil {
				return err
			}
			other := testEntry("billing", "1")
			other.PayloadHash = "v1:j:sha256:suite:other"
			for range 2 {
				receipt, err := s.process(ctx, other, middleware.KnownByKey)
				if err != nil {
					return err
				}
				if receipt.Stored.MessageKey != "1" || receipt.Stored.PayloadHash != first.PayloadHash || receipt.Stored.ProcessedAt.IsZero() {
					return fmt.Errorf("the receipt shows %+v, want key 1, hash %s and a time", receipt.Stored, first.PayloadHash)
				}
			}
			return s.wantEffects(ctx, 1)
		},
	},
	{
		name:   "an error of the effect keeps neither entry nor effect, and is found in the error",
		faults: "the entry is written in another transaction, before the effect",
		check: func(ctx context.Context, s Subject) error {
			_, err := s.Store.Process(ctx, testEntry("billing", "1"), func(ctx context.Context) error {
				return errors.Join(s.run(ctx), errBroken)
			})
			if !errors.Is(err, errBroken) {
				return fmt.Errorf("the error of the effect is not found in %v", err)
			}
			if err := s.wantEffects(ctx, 0); err != nil {
				return err
			}
			_, err = s.process(ctx, testEntry("billing", "1"), middleware.Accepted)
			return err
		},
	},
	{
		name:   "a panic in the effect keeps neither entry nor effect",
		faults: "the transaction is rolled back only on an error, or the entry was written before",
		check: func(ctx context.Context, s Subject) error {
			return s.failFirst(ctx, func(context.Context) error { panic("the handler panics") })
		},
	},
	{
		name:   "an effect that ends its goroutine keeps neither entry nor effect",
		faults: "the transaction is rolled back only on an error or a panic",
		check: func(ctx context.Context, s Subject) error {
			return s.failFirst(ctx, func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		},
	},
	{
		name:   "a delivery that is cancelled in mid-effect is accepted with its effect or keeps nothing",
		faults: "an error of the commit is taken for a success",
		check: func(ctx context.Context, s Subject) error {
			delivery, cancel := context.WithCancel(ctx)
			defer cancel()
			receipt, err := s.Store.Process(delivery, testEntry("billing", "1"), func(ctx context.Context) error {
				defer cancel()
				return s.run(ctx)
			})
			if err == nil && receipt.Disposition == middleware.Accepted {
				return s.wantEffects(ctx, 1)
			}
			if err := s.wantEffects(ctx, 0); err != nil {
				return err
			}
			if _, err := s.process(ctx, testEntry("billing", "1"), middleware.Accepted); err != nil {
				return err
			}
			return s.wantEffects(ctx, 1)
		},
	},
	{
		name:   "consumers do not see each other's entries",
		faults: "the consumer is not part of the key",
		check: func(ctx context.Context, s Subject) error {
			for _, consumer := range []string{"billing", "shipping", "billing|1", "billing|", "Billing"} {
				for _, key := range []string{"1", "|1", "1|1"} {
					if _, err := s.process(ctx, testEntry(consumer, key), middleware.Accepted); err != nil {
						return err
					}
				}
			}
			return s.wantEffects(ctx, 15)
		},
	},
	{
		name:   "keys are compared byte by byte",
		faults: "a collation folds case, accents or trailing spaces, or keys are cut",
		check: func(ctx context.Context, s Subject) error {
			keys := []string{"a", "A", "a ", " a", "á", "a\u0301", "ａ", "😀", "\u200b", "%", "_", "'", `"`, "\\", "\n", "NULL",
				strings.Repeat("k", 254) + "1", strings.Repeat("k", 254) + "2"}
			for _, known := range []middleware.Disposition{middleware.Accepted, middleware.KnownByKey} {
				for _, key := range keys {
					if _, err := s.process(ctx, testEntry("billing", key), known); err != nil {
						return err
					}
				}
			}
			return s.wantEffects(ctx, len(keys))
		},
	},
	{
		name:   "of many concurrent deliveries of one key one runs the effect",
		faults: "the store looks first and inserts then",
		check: func(ctx context.Context, s Subject) error {
			return s.deliverAtOnce(ctx, func(int) middleware.Entry { return testEntry("billing", "1") })
		},
	},
	{
		name:   "of many concurrent messages with one business key one runs the effect",
		faults: "the business key is not unique, or it is checked before the insert",
		check: func(ctx context.Context, s Subject) error {
			return s.deliverAtOnce(ctx, func(i int) middleware.Entry {
				entry := testEntry("billing", fmt.Sprint("key ", i))
				entry.BusinessKey = "order/7"
				return entry
			})
		},
	},
	{
		name:   "while the effect runs, another delivery of the key neither runs it nor is known",
		faults: "the entry is committed before the effect, so that a delivery is acked whose effect may still fail; or it is inserted after the effect, and the unique violation is caught",
		check: func(ctx context.Context, s Subject) error {
			inEffect, finish := make(chan struct{}), make(chan struct{})
			first := make(chan error, 1)
			go func() {
				_, err := s.Store.Process(ctx, testEntry("billing", "1"), func(ctx context.Context) error {
					close(inEffect)
					<-finish
					return s.run(ctx)
				})
				first <- err
			}()
			<-inEffect
			second, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			ranAgain := false
			receipt, err := s.Store.Process(second, testEntry("billing", "1"), func(ctx context.Context) error {
				ranAgain = true
				return s.run(ctx)
			})
			close(finish)
			if err := <-first; err != nil {
				return fmt.Errorf("the first delivery failed: %w", err)
			}
			if ranAgain {
				return errors.New("the effect ran a second time, whatever became of it")
			}
			if receipt.Disposition.IsKnown() {
				return fmt.Errorf("the second delivery came to disposition %d (%v) while the first was not committed", receipt.Disposition, err)
			}
			if _, err := s.process(ctx, testEntry("billing", "1"), middleware.KnownByKey); err != nil {
				return err
			}
			return s.wantEffects(ctx, 1)
		},
	},
	{
		name:   "a delivery that waited for one that failed runs the effect",
		faults: "the store guesses that a key that was in the way is known",
		check: func(ctx context.Context, s Subject) error {
			inEffect, finish := make(chan struct{}), make(chan struct{})
			first := make(chan error, 1)
			go func() {
				_, err := s.Store.Process(ctx, testEntry("billing", "1"), func(ctx context.Context) error {
					close(inEffect)
					<-finish
					return errors.Join(s.run(ctx), errBroken)
				})
				first <- err
			}()
			<-inEffect
			second := make(chan error, 1)
			go func() {
				// Held is right as well for a store that does not wait; then the broker delivers again.
				for {
					receipt, err := s.Store.Process(ctx, testEntry("billing", "1"), s.run)
					if err != nil || receipt.Disposition != middleware.Held {
						if err == nil && receipt.Disposition != middleware.Accepted {
							err = fmt.Errorf("the second delivery came to disposition %d", receipt.Disposition)
						}
						second <- err
						return
					}
				}
			}()
			close(finish)
			if err := <-first; !errors.Is(err, errBroken) {
				return fmt.Errorf("the first delivery came to %v", err)
			}
			if err := <-second; err != nil {
				return err
			}
			return s.wantEffects(ctx, 1)
		},
	},
	{
		name:   "another key with a known business key does not run and is recorded as its duplicate",
		faults: "the new key is not recorded, so that its redelivery looks new once the first entry is gone",
		check: func(ctx context.Context, s Subject) error {
			first, second := testEntry("billing", "1"), testEntry("billing", "2")
			first.BusinessKey, second.BusinessKey = "order/7", "order/7"
			second.PayloadHash = "v1:j:sha256:suite:other"
			if _, err := s.process(ctx, first, middleware.Accepted); err != nil {
				return err
			}
			receipt, err := s.process(ctx, second, middleware.KnownByBusinessKey)
			if err != nil {
				return err
			}
			if receipt.Stored.MessageKey != "1" || receipt.Stored.PayloadHash != first.PayloadHash {
				return fmt.Errorf("the receipt shows %+v instead of the first entry", receipt.Stored)
			}
			receipt, err = s.process(ctx, second, middleware.KnownByKey)
			if err != nil {
				return err
			}
			if receipt.Stored.DuplicateOf != "1" || receipt.Stored.PayloadHash != second.PayloadHash {
				return fmt.Errorf("the receipt shows %+v instead of the duplicate's own entry", receipt.Stored)
			}
			elsewhere := second
			elsewhere.Consumer = "shipping"
			if _, err := s.process(ctx, elsewhere, middleware.Accepted); err != nil {
				return err
			}
			return s.wantEffects(ctx, 2)
		},
	},
	{
		name:   "a failed delivery leaves its business key free",
		faults: "the business key is recorded in another transaction than the effect",
		check: func(ctx context.Context, s Subject) error {
			first, second := testEntry("billing", "1"), testEntry("billing", "2")
			first.BusinessKey, second.BusinessKey = "order/7", "order/7"
			_, err := s.Store.Process(ctx, first, func(ctx context.Context) error { return errors.Join(s.run(ctx), errBroken) })
			if !errors.Is(err, errBroken) {
				return fmt.Errorf("the first delivery came to %v", err)
			}
			if _, err := s.process(ctx, second, middleware.Accepted); err != nil {
				return err
			}
			return s.wantEffects(ctx, 1)
		},
	},
	{
		name:   "the effect's context carries the values of the delivery's",
		faults: "the effect gets a context of the store's own",
		check: func(ctx context.Context, s Subject) error {
			type key struct{}
			seen := false
			_, err := s.Store.Process(context.WithValue(ctx, key{}, true), testEntry("billing", "1"), func(ctx context.Context) error {
				seen = ctx.Value(key{}) != nil
				return s.run(ctx)
			})
			if err == nil && !seen {
				return errors.New("a value of the delivery's context is missing in the effect's")
			}
			return err
		},
	},
	{
		name:   "the result reference is kept with the effect and comes back with duplicates",
		faults: "the result is written in another transaction",
		check: func(ctx context.Context, s Subject) error {
			if s.SetResult == nil {
				return nil
			}
			entry := testEntry("billing", "1")
			entry.BusinessKey = "order/7"
			_, err := s.Store.Process(ctx, entry, func(ctx context.Context) error {
				return errors.Join(s.SetResult(ctx, "task/lost"), errBroken)
			})
			if !errors.Is(err, errBroken) {
				return fmt.Errorf("the first delivery came to %v", err)
			}
			_, err = s.Store.Process(ctx, entry, func(ctx context.Context) error {
				return errors.Join(s.run(ctx), s.SetResult(ctx, "task/1"))
			})
			if err != nil {
				return err
			}
			other := testEntry("billing", "2")
			other.BusinessKey = entry.BusinessKey
			for _, delivery := range []struct {
				entry middleware.Entry
				want  middleware.Disposition
			}{{entry, middleware.KnownByKey}, {other, middleware.KnownByBusinessKey}, {other, middleware.KnownByKey}} {
				receipt, err := s.process(ctx, delivery.entry, delivery.want)
				if err != nil {
					return err
				}
				if receipt.Stored.ResultReference != "task/1" {
					return fmt.Errorf("the result reference is %q, want task/1", receipt.Stored.ResultReference)
				}
			}
			return nil
		},
	},
}

// deliverAtOnce requires one effect of sixteen deliveries that start together. Deliveries that are held, or
// refused for now, are delivered again, as a broker does.
func (s Subject) deliverAtOnce(ctx context.Context, entry func(i int) middleware.Entry) error {
	const deliveries = 16
	var all sync.WaitGroup
	start := make(chan struct{})
	accepted := make(chan struct{}, deliveries)
	failed := make(chan error, deliveries)
	for i := range deliveries {
		all.Add(1)
		go func() {
			defer all.Done()
			<-start
			for {
				receipt, err := s.Store.Process(ctx, entry(i), s.run)
				switch {
				case err != nil && !middleware.IsTransient(err):
					failed <- err
					return
				case err == nil && receipt.Disposition == middleware.Accepted:
					accepted <- struct{}{}
					return
				case err == nil && receipt.Disposition.IsKnown():
					return
				}
			}
		}()
	}
	close(start)
	all.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	if len(accepted) != 1 {
		return fmt.Errorf("%d deliveries were accepted, want 1", len(accepted))
	}
	return s.wantEffects(ctx, 1)
}
