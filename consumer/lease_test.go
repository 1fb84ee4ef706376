package consumer_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

func TestHandlerLongerThanItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	cfg := w.config()
	cfg.Lease = time.Second
	handler := consumer.Handle(fast("order", ""), func(ctx context.Context, _ *consumer.Job[order]) error {
		<-release
		return ctx.Err()
	})
	w.start(cfg, handler)
	cfg.Name = "another, that would take it"
	w.start(cfg, handler)
	id := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
	w.awaitEvents(consumer.EventStarted, 1)
	first := *w.get(id).LeaseUntil
	testenv.Eventually(t, 15*time.Second, func() bool {
		got := w.get(id)
		if got.Status != retry.StatusExecuting {
			t.Fatalf("task is %s while its handler runs", got.Status)
		}
		return got.LeaseUntil.Sub(first) > 3*time.Second
	}, "three leases pass")
	w.wake("order", id) // nobody gets it by this
	close(release)
	if got := w.await(id, retry.StatusSuccess); got.Attempt != 1 || got.Crashes != 0 {
		t.Errorf("%d attempts, %d crashes", got.Attempt, got.Crashes)
	}
	if n := w.count(consumer.EventStarted); n != 1 {
		t.Errorf("%d runs", n)
	}
}

func TestCancelledByAPersonMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	causes := make(chan error, 1)
	w.start(w.config(), consumer.Handle(fast("order", ""), func(ctx context.Context, _ *consumer.Job[order]) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil
	}))
	id := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
	w.awaitEvents(consumer.EventStarted, 1)
	if _, err := w.store.Operate(context.Background(), persistence.Action{Verb: persistence.Cancel, ID: id, Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	if err := testenv.Receive(t, 3*time.Second, "the handler's context ends", causes); !errors.Is(err, retry.ErrLostClaim) {
		t.Errorf("cause %v", err)
	}
	w.awaitEvents(consumer.EventLostClaim, 1)
	if got := w.get(id); got.Status != retry.StatusCancelled {
		t.Errorf("task is %s", got.Status)
	}
}

// ghost claims tasks as a consumer that is killed then.
func (w *world) ghost(ids ...int64) {
	w.t.Helper()
	got, err := w.store.Claim(context.Background(), persistence.ClaimRequest{IDs: ids, Scenes: []string{"repeat", "review"}, Token: uuid.NewString(), By: "ghost", Lease: 100 * time.Millisecond})
	if err != nil || len(got) != len(ids) {
		w.t.Fatalf("%d claimed, %v", len(got), err)
	}
}

func TestConsumerThatWasKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.insert(persistence.NewTask{Scene: "repeat"}, persistence.NewTask{Scene: "review"}, persistence.NewTask{Scene: "repeat"})
	w.ghost(ids...)
	w.exec(`UPDATE {task} SET crashes = 2, uncharged = 2, attempt = 3 WHERE id = $1`, ids[2])
	w.start(w.config(), consumer.Handle(fast("repeat", retry.UnknownRepeat), succeed), consumer.Handle(fast("review", ""), succeed))
	for i, want := range []struct {
		status           retry.Status
		reason           retry.Reason
		attempt, crashes int
	}{
		{retry.StatusSuccess, "", 2, 1},
		{retry.StatusManualReview, retry.ReasonManualReview, 1, 1},
		{retry.StatusManualReview, retry.ReasonCrashLoop, 3, 3},
	} {
		got := w.await(ids[i], want.status)
		if got.StopReason != want.reason || got.Attempt != want.attempt || got.Crashes != want.crashes {
			t.Errorf("task %d: %q after %d attempts, %d crashes, want %+v", i, got.StopReason, got.Attempt, got.Crashes, want)
		}
	}
}

// take lets a consumer lose its claims as to another that gave them back at once, so that it
// claims the same tasks while its first handlers still run.
func (w *world) take(ids ...int64) {
	w.t.Helper()
	for _, id := range ids {
		w.exec(`UPDATE {task} SET status = 'WAIT', claim_token = gen_random_uuid(), lease_until = NULL, next_at = clock_timestamp() WHERE id = $1`, id)
	}
	w.wake("order", ids...)
}

// Two runs of a task in one process end at the same moment: the stale one must write nothing.
func TestStaleResultBesideTheNewOne(t *testing.T) {
	t.Parallel()
	const tasks = 20
	w := newWorld(t)
	release := make(chan struct{})
	cfg := w.config()
	cfg.Concurrency = 3 * tasks
	w.start(cfg, consumer.Handle(fast("order", ""), func(_ context.Context, j *consumer.Job[order]) error {
		<-release
		if j.Attempt == 1 {
			return retry.Permanent(errors.New("stale"))
		}
		return nil
	}))
	var ids []int64
	for _, r := range w.enqueue(many(tasks, "order")...) {
		ids = append(ids, r.ID)
	}
	w.awaitEvents(consumer.EventStarted, tasks)
	w.take(ids...)
	w.awaitEvents(consumer.EventStarted, 2*tasks)
	close(release)
	for _, id := range ids {
		if got := w.await(id, retry.StatusSuccess); got.LastError != "" {
			t.Errorf("task %d: %s", id, got.LastError)
		}
	}
	w.awaitEvents(consumer.EventLostClaim, tasks)
	if n := w.count(consumer.EventFinished); n != tasks {
		t.Errorf("%d results were applied, want %d", n, tasks)
	}
}

// A handler that lost its claim and does not return must not hold a stop up.
func TestStopWithAStaleHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	defer close(release)
	cfg := w.config()
	cfg.Grace = -1
	stop := w.start(cfg, consumer.Handle(fast("order", ""), func(_ context.Context, j *consumer.Job[order]) error {
		if j.Attempt == 1 {
			<-release
		}
		return nil
	}))
	id := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
	w.awaitEvents(consumer.EventStarted, 1)
	w.take(id)
	w.await(id, retry.StatusSuccess)
	if err := testenv.Receive(t, 20*time.Second, "Run returns", stopping(stop)); err != nil {
		t.Error(err)
	}
	if got := w.get(id); got.Status != retry.StatusSuccess || got.Attempt != 2 {
		t.Errorf("%s after %d attempts", got.Status, got.Attempt)
	}
}

// Three consumers, tasks that fail once, and duplicated wake-ups: no two runs of a task at once,
// and each ends after two attempts.
func TestNoTwoRunsAtOnce(t *testing.T) {
	t.Parallel()
	const tasks = 300
	w := newWorld(t)
	var mu sync.Mutex
	busy, runs := map[int64]bool{}, map[int64]int{}
	handler := consumer.Handle(fast("order", ""), func(_ context.Context, j *consumer.Job[order]) error {
		mu.Lock()
		defer mu.Unlock()
		if busy[j.Task.ID] {
			t.Errorf("task %d runs twice at once", j.Task.ID)
		}
		busy[j.Task.ID] = true
		mu.Unlock()
		if fib(20) != 6765 { // some work, so that runs would overlap
			t.Error("wrong sum")
		}
		mu.Lock()
		busy[j.Task.ID] = false
		runs[j.Task.ID]++
		if j.Attempt == 1 {
			return retry.Transient(errors.New("once"))
		}
		return nil
	})
	for i := range 3 {
		cfg := w.config()
		cfg.Name = "consumer " + strconv.Itoa(i)
		w.start(cfg, handler)
	}
	var ids []int64
	for _, r := range w.enqueue(many(tasks, "order")...) {
		ids = append(ids, r.ID)
	}
	w.wake("order", ids...)
	w.wake("order", ids...)
	for _, id := range ids {
		if got := w.await(id, retry.StatusSuccess); got.Attempt != 2 {
			t.Errorf("task %d took %d attempts", id, got.Attempt)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for id, n := range runs {
		if n != 2 {
			t.Errorf("task %d ran %d times", id, n)
		}
	}
}

// fib is work.
func fib(n int) int {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}
