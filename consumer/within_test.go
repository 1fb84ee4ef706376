package consumer_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// Every handler's context says which attempt it is part of, and a Do within it calls once.
func TestDoWithinAHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	seen := map[string][]retry.Attempt{}
	calls := 0
	note := func(ctx context.Context, handler string) {
		a, ok := retry.AttemptOf(ctx)
		if !ok {
			t.Errorf("%s: no attempt in its context", handler)
		}
		mu.Lock()
		defer mu.Unlock()
		seen[handler] = append(seen[handler], a)
	}
	w.start(w.config(), consumer.HandleSteps(asking("s"), consumer.Steps[order]{
		Check: func(ctx context.Context, _ *consumer.Job[order]) (retry.Progress, error) {
			note(ctx, "check")
			return retry.NotStarted, nil
		},
		Execute: func(ctx context.Context, job *consumer.Job[order]) error {
			note(ctx, "execute")
			if job.Attempt == 2 {
				return retry.Unknown(errors.New("lost"))
			}
			return w.pub.Do(ctx, publisher.Task{Scene: "inner"}, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				calls++
				return retry.Transient(errors.New("down"))
			})
		},
		Query: func(ctx context.Context, _ *consumer.Job[order]) (retry.Answer, error) {
			note(ctx, "query")
			return retry.TookEffect, nil
		},
		Callback: func(ctx context.Context, _ *consumer.Job[order]) error { note(ctx, "callback"); return nil },
	}))
	id := w.enqueue(publisher.Task{Scene: "s", Key: "k", Args: order{1}, Deadline: time.Hour})[0].ID
	w.await(id, retry.StatusSuccess)
	mu.Lock()
	defer mu.Unlock()
	if calls != 1 {
		t.Errorf("%d calls of the inner Do, want 1", calls)
	}
	for handler, want := range map[string][]int{"check": {1, 2}, "execute": {1, 2}, "query": {2}, "callback": {2}} {
		got := seen[handler]
		if len(got) != len(want) {
			t.Errorf("%s: %d calls, want %d", handler, len(got), len(want))
			continue
		}
		for i, a := range got {
			left := time.Until(a.Deadline)
			if a.Number != want[i] || a.Task != id || a.IdempotencyKey() != w.service+"/s/k" {
				t.Errorf("%s: %+v", handler, a)
			}
			if handler != "execute" && !a.Deadline.IsZero() || handler == "execute" && (left < 50*time.Minute || left > time.Hour) {
				t.Errorf("%s: deadline %v", handler, a.Deadline)
			}
		}
	}
	if events, err := w.store.Events(t.Context(), id); err != nil || len(events) == 0 || events[0].Error != "down" {
		t.Errorf("%+v, %v: the inner error as it is", events, err)
	}
}
