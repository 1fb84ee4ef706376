package consumer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// room is where handlers meet: they stay until it is opened.
type room struct {
	open chan struct{}

	mu             sync.Mutex
	now, max, left int
}

func newRoom() *room { return &room{open: make(chan struct{})} }

func (r *room) handle(context.Context, *consumer.Job[order]) error {
	r.mu.Lock()
	r.now++
	r.max = max(r.max, r.now)
	r.mu.Unlock()
	<-r.open
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now--
	r.left++
	return nil
}

func (r *room) inside() (now, max, left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now, r.max, r.left
}

func many(n int, scene string) (out []publisher.Task) {
	for i := range n {
		out = append(out, publisher.Task{Scene: scene, Args: order{i}})
	}
	return out
}

func TestConcurrencyOfAScene(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tune = append(w.tune, func(c *consumer.Consumer) { c.Shrink(10, time.Second) })
	narrow, wide := newRoom(), newRoom()
	scene := fast("narrow", "")
	scene.Concurrency = 2
	close(wide.open)
	cfg := w.config()
	cfg.Concurrency = 8
	w.start(cfg, consumer.Handle(scene, narrow.handle), consumer.Handle(fast("wide", ""), wide.handle))
	// More than fit into the consumer's hand: 2 running, 10 waiting, the others put off.
	first := w.enqueue(many(40, "narrow")...)
	testenv.Eventually(t, 10*time.Second, func() bool { now, _, _ := narrow.inside(); return now == 2 }, "two run")
	// A full scene does not stand in the way of another.
	for _, r := range w.enqueue(many(40, "wide")...) {
		w.await(r.ID, retry.StatusSuccess)
	}
	if now, most, _ := narrow.inside(); now != 2 || most != 2 {
		t.Errorf("%d run, %d at most, want 2", now, most)
	}
	close(narrow.open)
	for _, r := range first {
		if got := w.await(r.ID, retry.StatusSuccess); got.Attempt != 1 {
			t.Errorf("task %d took %d attempts", r.ID, got.Attempt)
		}
	}
	if _, most, left := narrow.inside(); most != 2 || left != 40 {
		t.Errorf("%d at once, %d in all, want 2 and 40", most, left)
	}
}

// With a backlog in hand a narrow scene never runs dry.
func TestNarrowSceneWithABacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	scene := fast("narrow", "")
	scene.Concurrency = 4
	w.start(w.config(), consumer.Handle(scene, succeed))
	for _, r := range w.enqueue(many(500, "narrow")...) {
		w.await(r.ID, retry.StatusSuccess)
	}
	if n := w.count(consumer.EventStarted); n != 500 {
		t.Errorf("%d runs, want 500", n)
	}
	// Putting off moves the dispatch time, which is else a gap after the due time.
	var putOff int
	err := w.store.DB().Get(&putOff, `SELECT count(*) FROM `+w.schema+`.task WHERE dispatch_after > next_at + $1 * interval '1 microsecond'`,
		persistence.DispatchGap.Microseconds())
	if err != nil || putOff > 0 {
		t.Errorf("%d tasks were put off (%v)", putOff, err)
	}
}

func TestConcurrencyInAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := newRoom()
	cfg := w.config()
	cfg.Concurrency = 3
	w.start(cfg, consumer.Handle(fast("a", ""), r.handle), consumer.Handle(fast("b", ""), r.handle))
	tasks := w.enqueue(append(many(10, "a"), many(10, "b")...)...)
	testenv.Eventually(t, 10*time.Second, func() bool { now, _, _ := r.inside(); return now == 3 }, "three run")
	close(r.open)
	for _, task := range tasks {
		w.await(task.ID, retry.StatusSuccess)
	}
	if _, most, left := r.inside(); most != 3 || left != 20 {
		t.Errorf("%d at once, %d in all, want 3 and 20", most, left)
	}
}
