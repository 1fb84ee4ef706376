package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// book is a log that can be read.
type book struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *book) says(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.buf.String(), text)
}

func (b *book) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func (w *world) awaitConsumers(want int) {
	w.t.Helper()
	testenv.Eventually(w.t, 20*time.Second, func() bool { _, n := w.queue(w.names().Ready()); return n == want }, "the subscription")
}

// gated is a handler whose first run waits.
func gated(runs *atomic.Int32, release <-chan struct{}) consumer.Handler {
	return consumer.Handle(fast("order", retry.UnknownRepeat), func(ctx context.Context, j *consumer.Job[order]) error {
		runs.Add(1)
		if j.Args.N == 1 {
			<-release
		}
		return nil
	})
}

func TestPostgresAwayAtWork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		away, back func(*testenv.Proxy)
	}{
		{"gone", func(p *testenv.Proxy) { p.Refuse(); p.Cut() }, (*testenv.Proxy).Accept},
		{"frozen", (*testenv.Proxy).Freeze, (*testenv.Proxy).Thaw},
		{"replies frozen", (*testenv.Proxy).FreezeReplies, (*testenv.Proxy).Thaw},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			proxy, store := w.through()
			var runs atomic.Int32
			release := make(chan struct{})
			log := &book{}
			cfg := w.config()
			cfg.Store, cfg.Logger = store, log.logger()
			if cfg.Lease = 3 * time.Second; c.name == "gone" {
				cfg.Lease = 20 * time.Second
			}
			w.start(cfg, gated(&runs, release))
			first := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
			w.awaitEvents(consumer.EventStarted, 1)
			c.away(proxy)
			second := w.enqueue(publisher.Task{Scene: "order", Args: order{2}})[0].ID
			w.awaitConsumers(0)
			close(release) // its result has to wait
			if c.name == "gone" {
				testenv.Eventually(t, 10*time.Second, func() bool { return log.says("cannot write results") }, "the finisher says that it waits")
				if got := w.get(first); got.Status != retry.StatusExecuting {
					t.Errorf("task is %s", got.Status)
				}
			}
			c.back(proxy)
			w.awaitConsumers(1)
			got := w.await(second, retry.StatusSuccess)
			if c.name != "gone" { // leases ran out meanwhile, even that of a claim whose answer never came
				if end := w.await(first, retry.StatusSuccess); got.Attempt > 2 || end.Attempt > 2 {
					t.Errorf("%d and %d attempts", end.Attempt, got.Attempt)
				}
				return
			}
			if got.Attempt != 1 || runs.Load() != 2 {
				t.Errorf("%d attempts, %d runs in all", got.Attempt, runs.Load())
			}
			if got := w.await(first, retry.StatusSuccess); got.Attempt != 1 || got.Crashes != 0 {
				t.Errorf("first task: %d attempts, %d crashes", got.Attempt, got.Crashes)
			}
		})
	}
}

func TestBrokerAwayAtWork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		away, back func(*testenv.Proxy)
	}{
		{"cut", (*testenv.Proxy).Cut, func(*testenv.Proxy) {}},
		{"gone", func(p *testenv.Proxy) { p.Refuse(); p.Cut() }, (*testenv.Proxy).Accept},
		{"frozen", (*testenv.Proxy).Freeze, (*testenv.Proxy).Thaw},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
			var runs atomic.Int32
			release := make(chan struct{})
			cfg := w.config()
			cfg.AMQPURL, cfg.Lease = url+"?heartbeat=2", 5*time.Second
			w.start(cfg, consumer.Handle(fast("order", ""), func(_ context.Context, j *consumer.Job[order]) error {
				runs.Add(1)
				if j.Args.N == 1 && j.Attempt == 1 {
					<-release
					return retry.Transient(errors.New("again, whose wake-up nobody takes"))
				}
				return nil
			}))
			first := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
			w.awaitEvents(consumer.EventStarted, 1)
			c.away(proxy)
			close(release)
			// Postgres is there: the result is written.
			testenv.Eventually(t, 10*time.Second, func() bool { return w.get(first).Status == retry.StatusWait }, "the first attempt's end")
			var rest []int64
			for _, r := range w.enqueue(many(20, "order")[2:]...) {
				rest = append(rest, r.ID)
			}
			if c.name == "frozen" {
				w.awaitConsumers(0) // found by the heartbeat
			}
			c.back(proxy)
			w.awaitEvents(consumer.EventSubscribed, 2)
			for _, id := range append(rest, first) {
				w.await(id, retry.StatusSuccess)
			}
			if n := runs.Load(); n != 20 {
				t.Errorf("%d runs, want 20", n)
			}
		})
	}
}

func TestReadyQueueDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.Declare = true
	w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	w.awaitEvents(consumer.EventSubscribed, 1)
	if _, err := w.amqp.QueueDelete(w.names().Ready(), false, false, false); err != nil {
		t.Fatal(err)
	}
	// Not a second subscription: where the queue is back quickly, the broker itself may move the old one.
	conn := testenv.AMQP(t)
	testenv.Eventually(t, 20*time.Second, func() bool {
		_, err := topology.Depth(t.Context(), conn, w.names().Ready())
		return err == nil
	}, "the queue is back")
	w.awaitWithScan(w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID) // it may not be bound yet
}

// awaitWithScan waits until a task is done whose wake-up may have run into the gap: without this, the scan would send it
// again only after DispatchGap.
func (w *world) awaitWithScan(id int64) {
	w.t.Helper()
	testenv.Eventually(w.t, 20*time.Second, func() bool {
		w.exec(`UPDATE {task} SET dispatch_after = clock_timestamp() WHERE id = $1 AND status = 'WAIT'`, id)
		got, err := w.store.Get(w.t.Context(), id)
		return err == nil && got.Status == retry.StatusSuccess
	}, "the task is done")
}

// An exchange that is deleted ends no subscription: the elected reaper's process makes it again.
func TestExchangeDeleted(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"delay", "due"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.tune = append(w.tune, func(c *consumer.Consumer) { c.DeclareOften() })
			cfg := w.config()
			cfg.Declare = true
			w.start(cfg, consumer.Handle(fast("order", ""), succeed))
			w.awaitEvents(consumer.EventSubscribed, 1)
			exchange := w.names().Delay()
			if name == "due" {
				exchange = w.names().Due()
			}
			if err := w.amqp.ExchangeDelete(exchange, false, false); err != nil {
				t.Fatal(err)
			}
			id := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
			w.awaitWithScan(id)
		})
	}
}

// Without Declare a missing queue is waited for.
func TestReadyQueueMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.amqp.QueueDelete(w.names().Ready(), false, false, false); err != nil {
		t.Fatal(err)
	}
	log := &book{}
	cfg := w.config()
	cfg.Logger = log.logger()
	w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	testenv.Eventually(t, 10*time.Second, func() bool { return log.says("NOT_FOUND") }, "it says that the queue is missing")
	if err := topology.Declare(t.Context(), testenv.AMQP(t), topology.Config{Service: w.service, Kind: topology.Classic}); err != nil {
		t.Fatal(err)
	}
	w.await(w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID, retry.StatusSuccess)
}

func TestServersAwayAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID
	pg, store := w.through()
	broker, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	pg.Refuse()
	broker.Refuse()
	log := &book{}
	cfg := w.config()
	cfg.Store, cfg.AMQPURL, cfg.Logger, cfg.Declare = store, url, log.logger(), true
	w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	testenv.Eventually(t, 10*time.Second, func() bool { return log.says("waiting for postgres") }, "it says that Postgres is away")
	pg.Accept()
	testenv.Eventually(t, 10*time.Second, func() bool { return log.says("cannot connect to the broker") }, "it says that the broker is away")
	broker.Accept()
	w.await(id, retry.StatusSuccess)
}

func TestStartTimeout(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"postgres", "rabbitmq", "rabbitmq, silent"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pg, store := w.through()
			broker, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
			switch server {
			case "postgres":
				pg.Refuse()
			case "rabbitmq":
				broker.Refuse()
			default:
				broker.Freeze()
			}
			cfg := w.config()
			cfg.Store, cfg.AMQPURL, cfg.StartTimeout, cfg.Declare = store, url, time.Second, true
			err := w.run(cfg)
			if !errors.Is(err, consumer.ErrUnreachable) || !strings.Contains(err.Error(), strings.Split(server, ",")[0]) {
				t.Errorf("%v, want ErrUnreachable of %s", err, server)
			}
		})
	}
}

// run runs a consumer that should end by itself.
func (w *world) run(cfg consumer.Config) error {
	w.t.Helper()
	c, err := consumer.New(cfg, consumer.Handle(fast("order", ""), succeed))
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(w.t.Context()) }()
	return testenv.Receive(w.t, 15*time.Second, "Run returns", done)
}

func TestSchemaThatDoesNotFit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.Store = storetest.OpenConfig(t, persistence.Config{Service: w.service, Schema: storetest.SchemaName(t)})
	if err := w.run(cfg); !errors.Is(err, retry.ErrSchema) {
		t.Errorf("%v, want ErrSchema", err)
	}
}

func TestTopologyThatDoesNotFit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.Declare, cfg.Kind = true, topology.Quorum
	var mismatch *topology.MismatchError
	if err := w.run(cfg); !errors.As(err, &mismatch) {
		t.Errorf("%v, want a MismatchError", err)
	}
}
