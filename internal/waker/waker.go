// Package waker publishes wake-ups: small persistent messages that say "look at
// task N now", confirmed by the broker in windows.
//
// Three goroutines belong to a Waker, all ended by Close. The publisher owns
// the AMQP channel and what is queued; it publishes and puts each message with its
// deferred confirm into the window (a channel, whose size bounds what is unconfirmed).
// The collector takes them out in order, waits for each confirm and settles it. The
// repairer hands failed ids to OnFail, so that a slow database holds neither up.
//
// A message is settled exactly once: confirmed and routed, or failed. What was
// outstanding when its channel died is unknown, and counts as failed: a second
// wake-up does no harm, a lost one costs a scan.
package waker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/topology"
)

// Config of a Waker.
type Config struct {
	// Conn to publish on; the caller closes it, after the Waker. Required.
	Conn *amqpconn.Conn
	// Service whose delay exchange is published to. Required.
	Service string
	// OnFail is told which wake-ups did not, or may not have, reached a queue,
	// and the last reason. It is called from one goroutine, with a context
	// that ends after RepairTimeout. nil: they are only logged.
	OnFail func(ctx context.Context, ids []int64, reason error)
	// Window bounds the unconfirmed messages. Zero: 2048.
	Window int
	// Capacity bounds what is queued; more fails at once. Zero: 100,000.
	Capacity int
	// Patience is how long messages wait for a connection that is away, or
	// that takes no messages, before they fail. Zero: 2 s.
	Patience time.Duration
	// ConfirmTimeout is how long a confirm may take. Then the channel is given up,
	// and with it all that is unconfirmed. Zero: 30 s.
	ConfirmTimeout time.Duration
	// RepairTimeout bounds a call of OnFail. Zero: 10 s.
	RepairTimeout time.Duration
	// Logger. nil: slog.Default.
	Logger *slog.Logger
}

// closeGrace is how long Close lets the publisher end a write by itself.
const closeGrace = 500 * time.Millisecond

// Wake is one wake-up.
type Wake struct {
	ID    int64
	Scene string
	// Due is when the task is due, by this process's monotonic clock. The delay
	// is what remains of it at the moment of publishing.
	Due time.Time
}

// Reasons for failing.
var (
	// ErrClosed says that the Waker was closed.
	ErrClosed = errors.New("waker closed")
	// ErrFull says that too much is queued.
	ErrFull = errors.New("too many wake-ups queued")
	// ErrUnroutable says that no queue took the message, or that there is no
	// such exchange.
	ErrUnroutable = errors.New("wake-up was unroutable")
	// ErrNacked says that the broker refused the message.
	ErrNacked = errors.New("wake-up was refused by the broker")
	// ErrUnconfirmed says that the channel died, or time ran out, before the confirm.
	ErrUnconfirmed = errors.New("wake-up was not confirmed")
	// ErrUnavailable says that there was no connection that takes messages.
	ErrUnavailable = errors.New("broker is not available")
)

type item struct {
	Wake
	settle func(error) // nil: failures go to OnFail
}

// Waker publishes wake-ups. Its methods may be called concurrently.
type Waker struct {
	cfg       Config
	exchange  string
	log       *slog.Logger
	ctx       context.Context // ended by Close, to cut waits short
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	window    chan sent
	published chan struct{}                    // closed when the publisher is gone
	current   atomic.Pointer[amqpconn.Session] // that the publisher writes to

	mu       sync.Mutex
	queue    []item
	closing  bool
	wake     chan struct{} // cap 1: queue changed
	pending  int           // queued or in the window
	idle     chan struct{} // closed and replaced when pending reaches zero
	failed   map[int64]struct{}
	reason   error
	repair   chan struct{} // cap 1: failed changed
	repaired bool          // the repairer is gone
}

// New starts a Waker.
func New(cfg Config) *Waker {
	if cfg.Window <= 0 {
		cfg.Window = 2048
	}
	if cfg.Capacity <= 0 {
		cfg.Capacity = 100_000
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.Patience, 2*time.Second)
	def(&cfg.ConfirmTimeout, 30*time.Second)
	def(&cfg.RepairTimeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.OnFail == nil {
		cfg.OnFail = func(context.Context, []int64, error) {}
	}
	w := &Waker{
		cfg: cfg, exchange: topology.NamesOf(cfg.Service).Delay(), log: cfg.Logger,
		window: make(chan sent, cfg.Window), published: make(chan struct{}),
		wake: make(chan struct{}, 1), idle: make(chan struct{}), failed: map[int64]struct{}{}, repair: make(chan struct{}, 1),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.wg.Go(w.publish)
	w.wg.Go(w.collect)
	w.wg.Go(w.repairLoop)
	return w
}

// Enqueue queues wake-ups. It never waits: what cannot be queued goes to OnFail.
// After Close has returned they are dropped, and the scan finds the tasks.
func (w *Waker) Enqueue(wakes ...Wake) {
	items := make([]item, len(wakes))
	for i, wk := range wakes {
		items[i] = item{Wake: wk}
	}
	w.add(items)
}

// Publish publishes wake-ups and waits until each is settled or ctx is done. It returns
// which were confirmed, in the order given; the error is the last reason of those
// that were not. Failures do not go to OnFail.
func (w *Waker) Publish(ctx context.Context, wakes []Wake) ([]bool, error) {
	if len(wakes) == 0 {
		return nil, nil
	}
	var mu sync.Mutex
	var last error
	left, done := len(wakes), make(chan struct{})
	ok := make([]bool, len(wakes))
	items := make([]item, len(wakes))
	for i, wk := range wakes {
		items[i] = item{Wake: wk, settle: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if ok[i] = err == nil; err != nil {
				last = err
			}
			if left--; left == 0 {
				close(done)
			}
		}}
	}
	w.add(items)
	select {
	case <-done:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	if left > 0 {
		last = fmt.Errorf("publish wake-ups: %w", ctx.Err())
	}
	return append([]bool(nil), ok...), last // a copy: late confirms still write to ok
}

func (w *Waker) add(items []item) {
	if len(items) == 0 {
		return
	}
	w.mu.Lock()
	var reason error
	switch {
	case w.closing:
		reason = ErrClosed
	case len(w.queue)+len(items) > w.cfg.Capacity:
		reason = ErrFull
	default:
		w.queue = append(w.queue, items...)
		notify(w.wake)
	}
	w.pending += len(items)
	w.mu.Unlock()
	if reason != nil {
		w.settle(reason, items...)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// settle ends items: well where err is nil.
func (w *Waker) settle(err error, items ...item) {
	for _, it := range items {
		if it.settle != nil {
			it.settle(err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !w.repaired {
		for _, it := range items {
			// Bounded: beyond it the row's own dispatch time heals.
			if it.settle == nil && len(w.failed) < w.cfg.Capacity {
				w.failed[it.ID] = struct{}{}
				w.reason = err
			}
		}
		if len(w.failed) > 0 {
			notify(w.repair)
		}
	}
	if w.pending -= len(items); w.pending == 0 {
		close(w.idle)
		w.idle = make(chan struct{})
	}
}

// Flush waits until everything queued so far, and since, is settled.
func (w *Waker) Flush(ctx context.Context) error {
	w.mu.Lock()
	pending, idle := w.pending, w.idle
	w.mu.Unlock()
	if pending == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("flush wake-ups: %w", ctx.Err())
	}
}

// Close flushes and stops. What is not settled when ctx is done fails; OnFail is told
// of every failure before Close returns, which takes its own time, bounded by
// RepairTimeout per call. A write that hangs on when ctx is done gets its connection
// killed. Close may be called again, and concurrently.
func (w *Waker) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	err := w.Flush(ctx)
	w.cancel()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-w.published:
	case <-grace.C:
		if s := w.current.Load(); s != nil {
			s.Kill(ErrClosed)
		}
	}
	w.wg.Wait()
	return err
}
