package waker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const long = 30 * time.Second // what never takes that long

// connect returns a Conn that is closed after the wakers of the test.
func connect(t testing.TB, cfg amqpconn.Config) *amqpconn.Conn {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = testenv.AMQPURL(t)
	}
	if cfg.Name == "" {
		cfg.Name = testenv.Service(t)
	}
	cfg.Logger = testenv.Logger(t)
	conn, err := amqpconn.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := conn.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// failures records the calls of OnFail.
type failures struct {
	mu     sync.Mutex
	times  map[int64]int
	reason error
}

func (f *failures) OnFail(_ context.Context, ids []int64, reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.times[id]++
	}
	f.reason = reason
}

func (f *failures) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.times)
}

func (f *failures) last() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reason
}

func (f *failures) once(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, n := range f.times {
		if n != 1 {
			t.Errorf("%d was reported %d times", id, n)
		}
	}
}

// start returns a Waker that is closed when the test ends.
func start(t testing.TB, cfg Config) (*Waker, *failures) {
	t.Helper()
	f := &failures{times: map[int64]int{}}
	if cfg.OnFail == nil {
		cfg.OnFail = f.OnFail
	}
	cfg.Logger = testenv.Logger(t)
	w := New(cfg)
	t.Cleanup(func() { closeWithin(t, w, 5*time.Second, long) })
	return w, f
}

func closeWithin(t testing.TB, w *Waker, limit, most time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	begin := time.Now()
	_ = w.Close(ctx)
	if took := time.Since(begin); took > most {
		t.Errorf("closing took %v", took)
	}
}

// wakes from id first on, due now.
func wakes(first int64, n int) []Wake {
	list := make([]Wake, n)
	for i := range list {
		list[i] = Wake{ID: first + int64(i), Scene: "scene.a", Due: time.Now()}
	}
	return list
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// works sees a wake-up confirmed, at once or after a while.
func works(t testing.TB, w *Waker) {
	t.Helper()
	testenv.Eventually(t, long, func() bool {
		ok, _ := w.Publish(within(t, 5*time.Second), wakes(1<<40, 1))
		return ok[0]
	}, "a wake-up is confirmed")
}

func channelOf(t testing.TB) *amqp.Channel {
	t.Helper()
	ch, err := testenv.AMQP(t).Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// bare declares only the delay exchange, to which nothing is bound.
func bare(t testing.TB, service string) (*amqp.Channel, string) {
	t.Helper()
	ch, name := channelOf(t), topology.NamesOf(service).Delay()
	if err := ch.ExchangeDeclare(name, "topic", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ch.ExchangeDelete(name, false, false) })
	return ch, name
}

// queue declares an exclusive queue bound to the exchange by key.
func queue(t testing.TB, ch *amqp.Channel, exchange, key string, args amqp.Table) string {
	t.Helper()
	q, err := ch.QueueDeclare("", false, true, true, false, args)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(q.Name, key, exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	return q.Name
}

// depth counts the messages of a queue that the test's channel may see.
func depth(t testing.TB, ch *amqp.Channel, name string) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(name, false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

func count(ok []bool) int {
	n := 0
	for _, b := range ok {
		if b {
			n++
		}
	}
	return n
}

// tally adds items that count how often each is settled.
type tally struct {
	mu          sync.Mutex
	times       map[int64]int
	well, badly int
	reasons     map[string]int
}

func (c *tally) add(w *Waker, list []Wake) {
	items := make([]item, len(list))
	for i, wk := range list {
		items[i] = item{Wake: wk, settle: func(err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.times[wk.ID]++
			if err == nil {
				c.well++
				return
			}
			c.badly++
			for _, reason := range []error{ErrClosed, ErrFull, ErrUnroutable, ErrNacked, ErrUnconfirmed, ErrUnavailable} {
				if errors.Is(err, reason) {
					c.reasons[reason.Error()]++
				}
			}
		}}
	}
	w.add(items)
}

func newTally() *tally { return &tally{times: map[int64]int{}, reasons: map[string]int{}} }

func (c *tally) settled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.well + c.badly
}

func (c *tally) once(t *testing.T, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%d confirmed, %d failed: %v", c.well, c.badly, c.reasons)
	if len(c.times) != n {
		t.Errorf("%d settled, want %d", len(c.times), n)
	}
	for id, times := range c.times {
		if times != 1 {
			t.Errorf("%d was settled %d times", id, times)
		}
	}
}
