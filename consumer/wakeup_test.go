package consumer_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

func succeed(context.Context, *consumer.Job[order]) error { return nil }

func TestSceneOfAnotherBuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hurry[0] = 300 * time.Millisecond
	w.start(w.config(), consumer.Handle(fast("known", ""), succeed))
	id := w.enqueue(publisher.Task{Scene: "new", Args: order{1}})[0].ID
	w.awaitEvents(consumer.EventUnknown, 2) // the wake-up comes back
	if got := w.get(id); got.Status != retry.StatusWait || got.Attempt != 0 {
		t.Errorf("%s after %d attempts, want WAIT, untouched", got.Status, got.Attempt)
	}
	w.start(w.config(), consumer.Handle(fast("new", ""), succeed))
	if got := w.await(id, retry.StatusSuccess); got.Attempt != 1 {
		t.Errorf("%d attempts", got.Attempt)
	}
}

func TestMessagesThatAreNotOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.start(w.config(), consumer.Handle(fast("order", ""), succeed))
	bad := []string{"", "garbage", "[1]", `{"id":0,"scene":"order"}`, `{"id":"7"}`, `{"order":7}`, `{"id":1e30}`, `{"id":1,"x":"` + strings.Repeat("x", 5000) + `"}`}
	for _, body := range bad {
		w.send(body)
	}
	other := storetest.OpenConfig(t, persistence.Config{Service: w.service + "-x", Schema: w.schema})
	in, err := other.Insert(context.Background(), []persistence.NewTask{{Scene: "order", Args: []byte(`{"N":1}`)}})
	if err != nil {
		t.Fatal(err)
	}
	w.wake("order", in[0].ID, 1<<62)
	w.awaitQueue(w.names().Parked(), len(bad))
	w.await(w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID, retry.StatusSuccess)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n, _ := w.queue(w.names().Ready()); n != 0 {
		t.Errorf("%d messages came back", n)
	}
	if n := w.count(consumer.EventParked); n != len(bad) {
		t.Errorf("%d events, want %d", n, len(bad))
	}
	got, err := other.Get(context.Background(), in[0].ID)
	if err != nil || got.Status != retry.StatusWait || got.Attempt != 0 {
		t.Errorf("task of another service: %s after %d attempts, %v", got.Status, got.Attempt, err)
	}
}

func TestDuplicatedWakeUps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs atomic.Int32
	stop := w.start(w.config(), consumer.Handle(fast("order", ""), func(context.Context, *consumer.Job[order]) error {
		runs.Add(1)
		return nil
	}))
	ids := w.insert(persistence.NewTask{Scene: "order"}, persistence.NewTask{Scene: "order"})
	for range 20 {
		w.wake("order", ids...)
	}
	w.wake("", ids...)
	w.wake("a name that is no scene's", ids...)
	for _, id := range ids {
		w.await(id, retry.StatusSuccess)
	}
	last := w.insert(persistence.NewTask{Scene: "order"})[0]
	w.wake("order", last) // behind all others
	w.await(last, retry.StatusSuccess)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n, _ := w.queue(w.names().Ready()); n != 0 {
		t.Errorf("%d messages came back", n)
	}
	if runs.Load() != 3 {
		t.Errorf("%d runs, want 3", runs.Load())
	}
}

// A wake-up that is a little early, as after a clock's drift, is not lost.
func TestEarlyWakeUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(w.config(), consumer.Handle(fast("order", ""), succeed))
	id := w.insert(persistence.NewTask{Scene: "order", Delay: time.Second})[0]
	w.wake("order", id)
	w.await(id, retry.StatusSuccess)
	task := w.get(id)
	if late := task.FinishedAt.Sub(task.CreatedAt); late < 900*time.Millisecond || late > 5*time.Second {
		t.Errorf("ended %v after its creation, want 1s", late)
	}
}

func TestLostWakeUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(w.config(), consumer.Handle(fast("order", ""), succeed))
	id := w.insert(persistence.NewTask{Scene: "order"})[0]
	w.exec(`UPDATE {task} SET dispatch_after = clock_timestamp() - interval '1 second' WHERE id = $1`, id)
	w.await(id, retry.StatusSuccess)
}

func TestHorizon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late := make(chan time.Duration, 1)
	w.start(w.config(), consumer.Handle(fast("far", ""), func(_ context.Context, j *consumer.Job[order]) error {
		late <- j.Late
		return nil
	}), consumer.Handle(fast("order", ""), succeed))
	res := w.enqueue(publisher.Task{Scene: "far", Args: order{1}, Delay: 60 * 24 * time.Hour}, publisher.Task{Scene: "order", Args: order{1}})
	w.await(res[1].ID, retry.StatusSuccess)
	w.wake("far", res[0].ID) // a stray one changes nothing
	w.awaitQueue(w.names().Ready(), 0)
	if got := w.get(res[0].ID); got.Status != retry.StatusWait || got.Attempt != 0 || got.DispatchAfter.After(got.NextAt) {
		t.Errorf("%s after %d attempts, scan %v after due", got.Status, got.Attempt, got.DispatchAfter.Sub(got.NextAt))
	}
	w.exec(`UPDATE {task} SET next_at = clock_timestamp() + interval '1 second', dispatch_after = clock_timestamp() - interval '1 minute' WHERE id = $1`, res[0].ID)
	if d := testenv.Receive(t, 10*time.Second, "the far task runs", late); d < -50*time.Millisecond || d > 5*time.Second {
		t.Errorf("ran %v after its time", d)
	}
}

// Few tasks of an unknown scene come again after 10 s; of many, a hundred a second do.
func TestPaceOfUnknownScenes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, err := consumer.New(w.config(), consumer.Handle(fast("order", ""), succeed))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.UnknownPace(1); got != 10*time.Second {
		t.Errorf("one comes again after %v, want 10s", got)
	}
	if got := c.UnknownPace(6000); got < 55*time.Second || got > 61*time.Second {
		t.Errorf("6000 more come again after %v, want about a minute", got)
	}
	if got := c.UnknownPace(1_000_000); got != 10*time.Minute {
		t.Errorf("a million more come again after %v, want at most 10m", got)
	}
}
