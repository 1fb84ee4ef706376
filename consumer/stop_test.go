package consumer_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// stopping calls stop in a goroutine.
func stopping(stop func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- stop() }()
	return done
}

func TestStopWaitsForHandlers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release, ended := make(chan struct{}), make(chan error, 1)
	stop := w.start(w.config(), consumer.Handle(fast("order", ""), func(ctx context.Context, _ *consumer.Job[order]) error {
		<-release
		ended <- ctx.Err()
		return nil
	}))
	id := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
	w.awaitEvents(consumer.EventStarted, 1)
	done := stopping(stop)
	testenv.Eventually(t, 10*time.Second, func() bool { _, n := w.queue(w.names().Ready()); return n == 0 }, "the consumer has unsubscribed")
	select {
	case err := <-done:
		t.Fatalf("Run did not wait for the handler: %v", err)
	default:
	}
	close(release)
	if err := testenv.Receive(t, 10*time.Second, "Run returns", done); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the handler's context ended within the grace: %v", err)
	}
	if got := w.get(id); got.Status != retry.StatusSuccess {
		t.Errorf("task is %s", got.Status)
	}
}

func TestStopGivesHandlersUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	defer close(release)
	var mu sync.Mutex
	var causes []error
	stubborn := func(ctx context.Context, _ *consumer.Job[order]) error {
		<-ctx.Done()
		mu.Lock()
		causes = append(causes, context.Cause(ctx))
		mu.Unlock()
		<-release
		return nil
	}
	cfg := w.config()
	cfg.Grace = -1
	stop := w.start(cfg, consumer.Handle(fast("repeat", retry.UnknownRepeat), stubborn), consumer.Handle(fast("review", ""), stubborn),
		consumer.Handle(fast("polite", retry.UnknownRepeat), func(ctx context.Context, _ *consumer.Job[order]) error { <-ctx.Done(); return ctx.Err() }))
	res := w.enqueue(publisher.Task{Scene: "repeat", Args: order{1}}, publisher.Task{Scene: "review", Args: order{1}}, publisher.Task{Scene: "polite", Args: order{1}})
	w.awaitEvents(consumer.EventStarted, 3)
	if err := testenv.Receive(t, 20*time.Second, "Run returns", stopping(stop)); err != nil {
		t.Error(err)
	}
	for i, want := range []retry.Status{retry.StatusWait, retry.StatusManualReview, retry.StatusWait} {
		if got := w.get(res[i].ID); got.Status != want || got.Attempt != 1 || got.Crashes != 0 {
			t.Errorf("%s: %s after %d attempts, %d crashes, want %s after 1", got.Scene, got.Status, got.Attempt, got.Crashes, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(causes) != 2 || !errors.Is(causes[0], consumer.ErrStopping) {
		t.Errorf("causes %v, want two times ErrStopping", causes)
	}
}

// What waits for its scene goes to others at once, not after a scan or a lease.
func TestStopHandsWaitingTasksBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := newRoom()
	scene := fast("narrow", "")
	scene.Concurrency = 1
	cfg := w.config()
	cfg.NoReaper, cfg.Grace = true, 30*time.Second
	stop := w.start(cfg, consumer.Handle(scene, r.handle))
	tasks := w.enqueue(many(10, "narrow")...)
	w.awaitEvents(consumer.EventStarted, 1)
	w.awaitQueue(w.names().Ready(), 0) // the others are in its hand
	done := stopping(stop)
	cfg.Name = "other"
	w.start(cfg, consumer.Handle(fast("narrow", ""), succeed))
	var ran int
	testenv.Eventually(t, 10*time.Second, func() bool {
		ran = 0
		for _, task := range tasks {
			if w.get(task.ID).Status == retry.StatusSuccess {
				ran++
			}
		}
		return ran == len(tasks)-1
	}, "another consumer runs what waited")
	close(r.open)
	if err := testenv.Receive(t, 10*time.Second, "Run returns", done); err != nil {
		t.Error(err)
	}
	for _, task := range tasks {
		if got := w.await(task.ID, retry.StatusSuccess); got.Attempt != 1 {
			t.Errorf("task %d took %d attempts", task.ID, got.Attempt)
		}
	}
}

// unwritable cannot write results.
type unwritable struct{ *persistence.Postgres }

func (unwritable) Finish(context.Context, []persistence.Result) ([]persistence.Finished, error) {
	return nil, errors.New("no results today")
}

// More results wait than anybody takes.
func TestStopWithResultsThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hurry[1] = time.Second
	cfg := w.config()
	cfg.Store, cfg.Concurrency = unwritable{w.store}, 2
	stop := w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	w.enqueue(many(20, "order")...)
	w.awaitEvents(consumer.EventStarted, 5) // two are full, one is being written, two wait to be told
	if err := testenv.Receive(t, 20*time.Second, "Run returns", stopping(stop)); err != nil {
		t.Error(err)
	}
}

func TestStopWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	for _, frozen := range []bool{false, true} {
		t.Run(map[bool]string{false: "gone", true: "frozen"}[frozen], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.hurry[1] = time.Second
			proxy, store := w.through()
			cfg := w.config()
			cfg.Store = store
			stop := w.start(cfg, consumer.Handle(fast("order", ""), succeed))
			w.await(w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID, retry.StatusSuccess)
			if frozen {
				proxy.Freeze()
			} else {
				proxy.Refuse()
				proxy.Cut()
			}
			task := w.enqueue(publisher.Task{Scene: "order", Args: order{2}})[0]
			// It is in the consumer's hand, or was.
			testenv.Eventually(t, 10*time.Second, func() bool { n, subs := w.queue(w.names().Ready()); return n == 0 || subs == 0 }, "the consumer takes it")
			if err := testenv.Receive(t, 20*time.Second, "Run returns", stopping(stop)); err != nil {
				t.Error(err)
			}
			w.awaitQueue(w.names().Ready(), 1) // and back
			if got := w.get(task.ID); got.Status != retry.StatusWait || got.Attempt != 0 {
				t.Errorf("%s after %d attempts", got.Status, got.Attempt)
			}
			proxy.Thaw()
		})
	}
}

func TestStopBeforeTheServersAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	proxy.Refuse()
	cfg := w.config()
	cfg.AMQPURL = url
	stop := w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	if err := testenv.Receive(t, 20*time.Second, "Run returns", stopping(stop)); err != nil {
		t.Error(err)
	}
}

// lateClaim answers claims late or not at all.
type lateClaim struct {
	*persistence.Postgres
	made  chan struct{} // told of each claim that was made
	reply chan error    // what the caller gets; nil: the claim
}

func (s lateClaim) Claim(ctx context.Context, req persistence.ClaimRequest) ([]persistence.Claimed, error) {
	got, err := s.Postgres.Claim(ctx, req)
	if err != nil || len(got) == 0 {
		return got, err
	}
	select {
	case s.made <- struct{}{}:
	default:
	}
	select {
	case err = <-s.reply:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return got, nil
}

// Claims that were made and not begun go back at once, also those whose answer never came.
func TestStopReleasesClaims(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]error{"answered": nil, "not answered": errors.New("the answer was lost")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			store := lateClaim{w.store, make(chan struct{}, 1), make(chan error)}
			cfg := w.config()
			cfg.Store, cfg.NoReaper, cfg.Lease = store, true, time.Minute
			stop := w.start(cfg, consumer.Handle(fast("order", ""), succeed))
			w.awaitEvents(consumer.EventSubscribed, 1)
			id := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
			testenv.Receive(t, 10*time.Second, "a claim", store.made)
			done := stopping(stop)
			testenv.Eventually(t, 10*time.Second, func() bool { _, n := w.queue(w.names().Ready()); return n == 0 }, "it stops")
			store.reply <- reply
			if err := testenv.Receive(t, 20*time.Second, "Run returns", done); err != nil {
				t.Error(err)
			}
			if got := w.get(id); got.Status != retry.StatusWait || got.Attempt != 0 || w.count(consumer.EventStarted) != 0 || w.count(consumer.EventReleased) != 1 {
				t.Errorf("%s after %d attempts, %d released", got.Status, got.Attempt, w.count(consumer.EventReleased))
			}
			cfg.Store = w.store
			w.start(cfg, consumer.Handle(fast("order", ""), succeed))
			if got := w.await(id, retry.StatusSuccess); got.Attempt != 1 {
				t.Errorf("%d attempts", got.Attempt)
			}
		})
	}
}

// A broker that says nothing is not waited for until its heartbeat is missed.
func TestStopWhileTheBrokerIsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	release := make(chan struct{})
	cfg := w.config()
	cfg.AMQPURL = url + "?heartbeat=60"
	stop := w.start(cfg, consumer.Handle(fast("order", ""), func(context.Context, *consumer.Job[order]) error {
		<-release
		return retry.Transient(errors.New("its wake-up cannot be sent"))
	}))
	id := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
	w.awaitEvents(consumer.EventStarted, 1)
	proxy.Freeze()
	done := stopping(stop)
	close(release)
	if err := testenv.Receive(t, 30*time.Second, "Run returns", done); err != nil {
		t.Error(err)
	}
	// The scan is to wake it: its dispatch time was set back when the wake-up failed.
	if got := w.get(id); got.Status != retry.StatusWait || got.DispatchAfter.After(got.NextAt) {
		t.Errorf("%s, scan %v after due", got.Status, got.DispatchAfter.Sub(got.NextAt))
	}
}
