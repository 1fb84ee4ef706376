package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a service with a store, a topology, a publisher and, once started,
// consumers.
type world struct {
	t       *testing.T
	service string
	schema  string
	store   *persistence.Postgres
	pub     *publisher.Publisher
	amqp    *amqp.Channel // for what no publisher would send; one goroutine at a time
	hurry   [2]time.Duration
	tune    []func(*consumer.Consumer) // done to each before it runs

	mu     sync.Mutex
	events []consumer.Event
}

// newWorld has classic queues where no kind is given: they are quicker to declare.
func newWorld(t *testing.T, kind ...topology.QueueKind) *world {
	t.Helper()
	w := &world{t: t, service: testenv.Service(t), schema: storetest.Schema(t)}
	w.store = storetest.OpenConfig(t, persistence.Config{Service: w.service, Schema: w.schema})
	testenv.DeclareTopology(t, w.service, append(kind, topology.Classic)[0])
	var err error
	if w.amqp, err = testenv.AMQP(t).Channel(); err != nil {
		t.Fatal(err)
	}
	pub, err := publisher.New(publisher.Config{Service: w.service, Store: w.store, AMQPURL: testenv.AMQPURL(t), Logger: testenv.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	w.pub = pub
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := pub.Close(ctx); err != nil {
			t.Errorf("close publisher: %v", err)
		}
	})
	return w
}

func (w *world) note(e consumer.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *world) count(kind consumer.EventKind) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (w *world) config() consumer.Config {
	return consumer.Config{
		Service: w.service, Store: w.store, AMQPURL: testenv.AMQPURL(w.t), Kind: topology.Classic, Logger: testenv.Logger(w.t), OnEvent: w.note,
		Lease: 2 * time.Second, ScanInterval: 500 * time.Millisecond, Grace: 5 * time.Second, Concurrency: 16,
	}
}

// start runs a consumer until the test ends or stop is called, which returns
// what Run returned.
func (w *world) start(cfg consumer.Config, handlers ...consumer.Handler) (stop func() error) {
	w.t.Helper()
	c, err := consumer.New(cfg, handlers...)
	if err != nil {
		w.t.Fatal(err)
	}
	c.Hurry(w.hurry[0], w.hurry[1])
	for _, f := range w.tune {
		f(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	var result error
	stop = func() error {
		once.Do(func() { cancel(); result = <-done })
		return result
	}
	w.t.Cleanup(func() {
		if err := stop(); err != nil {
			w.t.Errorf("consumer: %v", err)
		}
	})
	return stop
}

func (w *world) enqueue(tasks ...publisher.Task) []publisher.Result {
	w.t.Helper()
	out, err := w.pub.EnqueueMany(context.Background(), tasks)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// await waits until a task has a status.
func (w *world) await(id int64, want retry.Status) retry.Task {
	w.t.Helper()
	var task retry.Task
	testenv.Eventually(w.t, 20*time.Second, func() bool {
		var err error
		if task, err = w.store.Get(context.Background(), id); err != nil {
			w.t.Fatal(err)
		}
		return task.Status == want
	}, "task "+string(want))
	return task
}

// insert stores tasks whose wake-ups nobody sends.
func (w *world) insert(tasks ...persistence.NewTask) (ids []int64) {
	w.t.Helper()
	for i := range tasks {
		if tasks[i].Args == nil {
			tasks[i].Args = []byte(`{"N":1}`)
		}
	}
	in, err := w.store.Insert(context.Background(), tasks)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range in {
		ids = append(ids, r.ID)
	}
	return ids
}

// exec runs SQL on the tables, {task} is one of them.
func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.store.DB().ExecContext(context.Background(), strings.ReplaceAll(query, "{task}", w.schema+".task"), args...); err != nil {
		w.t.Fatal(err)
	}
}

// send puts a message into the ready queue.
func (w *world) send(body string) {
	w.t.Helper()
	err := w.amqp.PublishWithContext(context.Background(), "", w.names().Ready(), false, false, amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wake(scene string, ids ...int64) {
	w.t.Helper()
	for _, id := range ids {
		w.send(fmt.Sprintf(`{"id":%d,"scene":%q}`, id, scene))
	}
}

func (w *world) names() topology.Names { return topology.NamesOf(w.service) }

// queue returns how many messages wait in a queue, and how many consumers it has.
func (w *world) queue(name string) (messages, consumers int) {
	w.t.Helper()
	q, err := w.amqp.QueueDeclarePassive(name, true, false, false, false, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return q.Messages, q.Consumers
}

// awaitQueue waits until a queue holds so many messages that nobody has in hand.
func (w *world) awaitQueue(name string, want int) {
	w.t.Helper()
	testenv.Eventually(w.t, 10*time.Second, func() bool { n, _ := w.queue(name); return n == want }, fmt.Sprintf("%d messages in %s", want, name))
}

// awaitEvents waits for at least n events of a kind.
func (w *world) awaitEvents(kind consumer.EventKind, n int) {
	w.t.Helper()
	testenv.Eventually(w.t, 20*time.Second, func() bool { return w.count(kind) >= n }, fmt.Sprintf("%d events %s", n, kind))
}

func (w *world) get(id int64) retry.Task {
	w.t.Helper()
	task, err := w.store.Get(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return task
}

// through returns a store behind a proxy that can fail.
func (w *world) through() (*testenv.Proxy, *persistence.Postgres) {
	w.t.Helper()
	proxy, dsn := testenv.ProxyURL(w.t, testenv.PostgresDSN(w.t))
	return proxy, storetest.OpenConfig(w.t, persistence.Config{DSN: dsn, Service: w.service, Schema: w.schema})
}

type order struct{ N int }

// fast retries after 100 ms.
func fast(name string, unknown retry.UnknownMode) retry.Scene {
	return retry.Scene{Name: name, Unknown: unknown,
		Policy: retry.Policy{Kind: retry.Fixed, Base: 100 * time.Millisecond, MaxAttempts: 3}}
}

func TestTaskRunsRetriesAndEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, topology.Quorum)
	boom := errors.New("boom")
	var mu sync.Mutex
	seen := map[int]int{}
	w.start(w.config(), consumer.Handle(fast("order", ""), func(_ context.Context, j *consumer.Job[order]) error {
		mu.Lock()
		seen[j.Args.N]++
		mu.Unlock()
		switch {
		case j.Args.N == 1:
			return nil
		case j.Args.N == 2 && j.Attempt < 3:
			return retry.Transient(boom)
		case j.Args.N == 3:
			return retry.Permanent(boom)
		case j.Args.N == 4:
			return boom
		case j.Args.N == 5:
			panic("oh no")
		case j.Args.N == 6:
			return retry.Transient(boom)
		}
		return nil
	}))
	var tasks []publisher.Task
	for n := range 6 {
		tasks = append(tasks, publisher.Task{Scene: "order", Args: order{n + 1}})
	}
	res := w.enqueue(tasks...)
	for i, want := range []struct {
		status  retry.Status
		reason  retry.Reason
		attempt int
	}{
		{retry.StatusSuccess, "", 1},
		{retry.StatusSuccess, "", 3},
		{retry.StatusFailed, retry.ReasonFailPermanent, 1},
		{retry.StatusManualReview, retry.ReasonManualReview, 1},
		{retry.StatusManualReview, retry.ReasonManualReview, 1},
		{retry.StatusFailed, retry.ReasonAttemptsExhausted, 3},
	} {
		got := w.await(res[i].ID, want.status)
		if got.StopReason != want.reason || got.Attempt != want.attempt {
			t.Errorf("task %d: %s after %d attempts, want %s after %d", i+1, got.StopReason, got.Attempt, want.reason, want.attempt)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if seen[1] != 1 || seen[2] != 3 || seen[6] != 3 {
		t.Errorf("runs: %v", seen)
	}
}
