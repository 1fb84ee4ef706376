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
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
	// that ends after RepairTimeout. Required.
	OnFail func(ctx context.Context, ids []int64, reason error)
	// Window bounds the unconfirmed messages. Zero: 2048.
	Window int
	// Capacity bounds what is queued; more fails at once. Zero: 100,000.
	Capacity int
	// Patience is how long messages wait for a connection that is away, or
	// that takes no messages, before they fail. Zero: 2 s.
	Patience time.Duration
	// ConfirmTimeout is how long a confirm is waited for. Zero: 30 s.
	ConfirmTimeout time.Duration
	// RepairTimeout bounds a call of OnFail. Zero: 10 s.
	RepairTimeout time.Duration
	// Logger. nil: slog.Default.
	Logger *slog.Logger
}

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
	// ErrUnroutable says that no queue took the message.
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

// channel is an AMQP channel in confirm mode.
type channel struct {
	ch       *amqp.Channel
	session  *amqpconn.Session
	returns  chan amqp.Return // as large as the window, so that the library's reader never waits
	closed   chan *amqp.Error
	returned map[string]bool // the collector's
}

type sent struct {
	item
	on      *channel
	confirm *amqp.DeferredConfirmation
}

// Waker publishes wake-ups. Its methods may be called concurrently.
type Waker struct {
	cfg    Config
	names  topology.Names
	log    *slog.Logger
	ctx    context.Context // ended by Close, to cut waits short
	cancel context.CancelFunc
	wg     sync.WaitGroup
	window chan sent

	mu      sync.Mutex
	queue   []item
	closing bool
	wake    chan struct{} // cap 1: queue or closing changed
	pending int           // queued or in the window
	idle    chan struct{} // closed and replaced when pending reaches zero
	failed  map[int64]struct{}
	reason  error
	repair  chan struct{} // cap 1: failed changed
}

// New starts a Waker.
func New(cfg Config) *Waker {
	if cfg.Window == 0 {
		cfg.Window = 2048
	}
	if cfg.Capacity == 0 {
		cfg.Capacity = 100_000
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.Patience, 2*time.Second)
	def(&cfg.ConfirmTimeout, 30*time.Second)
	def(&cfg.RepairTimeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	w := &Waker{
		cfg: cfg, names: topology.NamesOf(cfg.Service), log: cfg.Logger, window: make(chan sent, cfg.Window),
		wake: make(chan struct{}, 1), idle: make(chan struct{}), failed: map[int64]struct{}{}, repair: make(chan struct{}, 1),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.wg.Go(w.publish)
	w.wg.Go(w.repairLoop)
	return w
}

// Enqueue queues wake-ups. It never waits: what cannot be queued goes to OnFail.
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
	return append([]bool(nil), ok...), last
}

func (w *Waker) add(items []item) {
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
	if err != nil {
		for _, it := range items {
			// Bounded: beyond it the row's own dispatch time heals.
			if it.settle == nil && len(w.failed) < w.cfg.Capacity {
				w.failed[it.ID] = struct{}{}
			}
		}
		w.reason = err
		notify(w.repair)
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
// of every failure before Close returns, or RepairTimeout has passed.
func (w *Waker) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	err := w.Flush(ctx)
	w.cancel()
	notify(w.wake)
	w.wg.Wait()
	return err
}

// publish is the publisher. It ends when ctx is done, after failing what is queued,
// and ends the collector by closing the window.
func (w *Waker) publish() {
	w.wg.Go(w.collect)
	defer close(w.window)
	var on *channel
	defer func() { on.close() }()
	for {
		select {
		case <-w.wake:
		case <-w.ctx.Done():
		}
		w.mu.Lock()
		items := w.queue
		w.queue = nil
		w.mu.Unlock()
		if w.ctx.Err() != nil {
			w.settle(ErrClosed, items...)
			return
		}
		for len(items) > 0 {
			var err error
			if on, err = w.ready(on); err != nil {
				w.settle(err, items...)
				break
			}
			items = w.publishOn(on, items)
		}
	}
}

// publishOn publishes items until one fails, and returns those left, without
// the failed one.
func (w *Waker) publishOn(on *channel, items []item) []item {
	for i, it := range items {
		if i%64 == 0 && (on.dead() || on.session.Blocked() != "") {
			return items[i:]
		}
		key, ok := topology.Key(w.names.Service(), time.Until(it.Due))
		if !ok { // beyond the horizon: the scan's
			w.settle(nil, it)
			continue
		}
		confirm, err := on.ch.PublishWithDeferredConfirm(w.names.Delay(), key, true, false, amqp.Publishing{
			ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: strconv.FormatInt(it.ID, 10), Body: body(it.Wake),
		})
		if err != nil {
			w.settle(fmt.Errorf("%w: %w", ErrUnconfirmed, err), it)
			on.close()
			return items[i+1:]
		}
		select {
		case w.window <- sent{it, on, confirm}:
		case <-w.ctx.Done():
			w.settle(ErrClosed, it)
			return items[i+1:]
		}
	}
	return nil
}

func body(wk Wake) []byte {
	b := make([]byte, 0, 48)
	b = append(b, `{"id":`...)
	b = strconv.AppendInt(b, wk.ID, 10)
	b = append(b, `,"scene":`...)
	b = strconv.AppendQuote(b, wk.Scene)
	return append(b, '}')
}

// ready returns a channel that takes messages: on, or a new one. It waits for
// Patience at most.
func (w *Waker) ready(on *channel) (*channel, error) {
	ctx, cancel := context.WithTimeout(w.ctx, w.cfg.Patience)
	defer cancel()
	for {
		if on != nil && on.dead() {
			on.close()
			on = nil
		}
		session, err := w.cfg.Conn.Session(ctx)
		if err != nil {
			return on, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		select {
		case <-session.Unblocked():
		case <-session.Done():
			continue
		case <-ctx.Done():
			return on, fmt.Errorf("%w: it takes no messages: %s", ErrUnavailable, session.Blocked())
		}
		if on != nil {
			return on, nil
		}
		if on, err = w.open(session); err == nil {
			return on, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: open a channel: %w", ErrUnavailable, err)
		}
	}
}

func (w *Waker) open(session *amqpconn.Session) (*channel, error) {
	ch, err := session.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	return &channel{
		ch: ch, session: session, returned: map[string]bool{},
		returns: ch.NotifyReturn(make(chan amqp.Return, w.cfg.Window+1)),
		closed:  ch.NotifyClose(make(chan *amqp.Error, 1)),
	}, nil
}

func (c *channel) dead() bool {
	return c.ch.IsClosed() || c.session.Err() != nil
}

func (c *channel) close() {
	if c != nil && !c.dead() {
		_ = c.ch.Close()
	}
}

// collect is the collector. It ends when the window is closed and empty.
func (w *Waker) collect() {
	timer := time.NewTimer(w.cfg.ConfirmTimeout)
	defer timer.Stop()
	for s := range w.window {
		timer.Reset(w.cfg.ConfirmTimeout)
		w.settle(w.await(s, timer.C), s.item)
	}
}

func (w *Waker) await(s sent, timeout <-chan time.Time) error {
	// A message that was returned is also acked, and its return comes first.
	select {
	case <-s.confirm.Done():
	case <-s.on.session.Done():
		return fmt.Errorf("%w: %w", ErrUnconfirmed, s.on.session.Err())
	case <-w.ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnconfirmed, ErrClosed)
	case <-timeout:
		// A broker that takes messages and says nothing: start afresh.
		s.on.close()
		return fmt.Errorf("%w in %v", ErrUnconfirmed, w.cfg.ConfirmTimeout)
	}
	if !s.confirm.Acked() {
		// Nacks of a channel that died look like the broker's.
		select {
		case err := <-s.on.closed:
			if err != nil {
				return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
			}
		default:
		}
		return ErrNacked
	}
	for {
		select {
		case r, open := <-s.on.returns:
			if open {
				s.on.returned[r.MessageId] = true
				continue
			}
		default:
		}
		break
	}
	if id := strconv.FormatInt(s.ID, 10); s.on.returned[id] {
		delete(s.on.returned, id)
		return ErrUnroutable
	}
	return nil
}

// repairLoop is the repairer. After Close it works off what is left.
func (w *Waker) repairLoop() {
	for {
		closing := false
		select {
		case <-w.repair:
		case <-w.ctx.Done():
			closing = true
		}
		if closing {
			w.drained()
		}
		w.mu.Lock()
		ids := make([]int64, 0, len(w.failed))
		for id := range w.failed {
			ids = append(ids, id)
		}
		clear(w.failed)
		reason := w.reason
		w.mu.Unlock()
		if len(ids) > 0 {
			w.log.Warn("wake-ups were not delivered; the scan will send them", "count", len(ids), "reason", reason)
			ctx, cancel := context.WithTimeout(context.Background(), w.cfg.RepairTimeout)
			w.cfg.OnFail(ctx, ids, reason)
			cancel()
		}
		if closing {
			return
		}
	}
}

// drained waits until nothing is pending; after Close that needs no broker.
func (w *Waker) drained() {
	w.mu.Lock()
	pending, idle := w.pending, w.idle
	w.mu.Unlock()
	if pending > 0 {
		<-idle
	}
}
