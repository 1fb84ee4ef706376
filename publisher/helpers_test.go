package publisher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nowhere is a broker's address at which nothing listens (port 1, tcpmux).
const nowhere = "amqp://spillway:spillway@127.0.0.1:1/"

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// newPublisher returns a publisher with a store of its own; change may alter its
// config first. It is closed at the end unless the test did.
func newPublisher(t testing.TB, change func(*publisher.Config)) (*publisher.Publisher, *persistence.Postgres) {
	t.Helper()
	service := testenv.Service(t)
	store := storetest.OpenService(t, service)
	cfg := publisher.Config{Service: service, Store: store, AMQPURL: nowhere, Logger: quiet(), Name: "test-publisher"}
	if change != nil {
		change(&cfg)
	}
	p, err := publisher.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Close again would repeat what it said to the test.
		if !errors.Is(p.Wake(context.Background()), publisher.ErrClosed) {
			closeWithin(t, p, 10*time.Second)
		}
	})
	return p, store
}

// connected returns a publisher on the test broker, with a topology of its own,
// its store and what arrives in its ready queue.
func connected(t testing.TB, change func(*publisher.Config)) (*publisher.Publisher, *persistence.Postgres, *ready) {
	t.Helper()
	var service string
	p, store := newPublisher(t, func(c *publisher.Config) {
		service, c.AMQPURL = c.Service, testenv.AMQPURL(t)
		if change != nil {
			change(c)
		}
	})
	return p, store, listen(t, testenv.DeclareTopology(t, service, topology.Classic).Names().Ready())
}

// ready is what arrives in a ready queue.
type ready struct {
	mu   sync.Mutex
	seen map[int64]arrival // the first of each task
}

type arrival struct {
	amqp.Delivery
	at time.Time
}

// listen consumes a queue until the test ends.
func listen(t testing.TB, queue string) *ready {
	t.Helper()
	ch, err := testenv.AMQP(t).Channel()
	if err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &ready{seen: map[int64]arrival{}}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = ch.Close(); wg.Wait() })
	wg.Go(func() {
		for d := range deliveries {
			var msg struct{ ID int64 }
			if err := json.Unmarshal(d.Body, &msg); err != nil {
				t.Errorf("message %q: %v", d.Body, err)
			}
			r.mu.Lock()
			if _, again := r.seen[msg.ID]; !again {
				r.seen[msg.ID] = arrival{d, time.Now()}
			}
			r.mu.Unlock()
		}
	})
	return r
}

func (r *ready) get(id int64) (arrival, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.seen[id]
	return a, ok
}

// wait waits until all tasks have been woken.
func (r *ready) wait(t testing.TB, ids ...int64) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, func() bool {
		for _, id := range ids {
			if _, ok := r.get(id); !ok {
				return false
			}
		}
		return true
	}, fmt.Sprintf("%d wake-ups arrive", len(ids)))
}

// undispatched reports whether a scan would wake the task.
func undispatched(t testing.TB, s *persistence.Postgres, id int64) bool {
	t.Helper()
	list, err := s.Undispatched(t.Context(), 100_000)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(list, func(w persistence.Wake) bool { return w.ID == id })
}

// prompt ends the test if f takes as long as only waiting for a broker would.
func prompt(t testing.TB, what string, f func()) {
	t.Helper()
	begin := time.Now()
	if f(); time.Since(begin) > 1500*time.Millisecond {
		t.Errorf("%s took %v", what, time.Since(begin))
	}
}

func closeWithin(t testing.TB, p *publisher.Publisher, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func get(t testing.TB, s *persistence.Postgres, id int64) retry.Task {
	t.Helper()
	task, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func countTasks(t testing.TB, s *persistence.Postgres) int {
	t.Helper()
	list, err := s.List(t.Context(), persistence.Filter{Limit: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// parallel runs f in n goroutines.
func parallel(t testing.TB, n int, f func(worker int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() {
			if err := f(w); err != nil {
				t.Errorf("worker %d: %v", w, err)
			}
		})
	}
	wg.Wait()
}
