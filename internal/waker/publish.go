package waker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/topology"
)

const (
	// gridSlack is how late a wake-up may become for fewer hops. What was recorded
	// lies on the grid; what remains of it at the moment of publishing does not.
	gridSlack = 500 * time.Millisecond
	// openPause is the pause after a channel could not be opened.
	openPause = 50 * time.Millisecond
)

// sent is a message in the window.
type sent struct {
	item
	on      *channel
	at      time.Time
	confirm *amqp.DeferredConfirmation
}

// publish is the publisher. It ends after Close, once it has failed what is queued,
// and ends the collector by closing the window.
func (w *Waker) publish() {
	defer close(w.published)
	defer close(w.window)
	var on *channel
	var missing error // the exchange is, as far as we know until the time of hold
	var hold time.Time
	defer func() {
		if on != nil {
			on.end()
		}
	}()
	for {
		select {
		case <-w.wake:
		case <-w.ctx.Done():
		}
		w.mu.Lock()
		items := w.queue
		w.queue = nil
		w.mu.Unlock()
		for len(items) > 0 {
			if w.ctx.Err() != nil {
				w.settle(ErrClosed, items...)
				break
			}
			if on != nil && on.cause() != nil {
				hold, missing = on.missing()
				on.close()
				on = nil
			}
			if missing != nil && time.Now().Before(hold) {
				w.settle(missing, items...)
				break
			}
			var err error
			if on, err = w.ready(on); err != nil {
				w.settle(err, items...)
				break
			}
			items = w.publishOn(on, items)
		}
		if w.ctx.Err() != nil {
			w.mu.Lock()
			items, w.queue = w.queue, nil
			w.mu.Unlock()
			w.settle(ErrClosed, items...) // add queues nothing more
			return
		}
	}
}

// publishOn publishes items until on cannot go on, and returns those left. Each of the
// others is in the window or settled.
func (w *Waker) publishOn(on *channel, items []item) []item {
	grid := topology.Grid()
	for i, it := range items {
		select {
		case <-on.abandoned:
			return items[i:]
		default:
		}
		if i%16 == 0 && (on.cause() != nil || on.session.Blocked() != "") {
			return items[i:]
		}
		now := time.Now()
		delay := it.Due.Sub(now)
		if up := grid.Up(delay); up-delay <= gridSlack {
			delay = up
		}
		key, ok := topology.Key(w.cfg.Service, delay)
		if !ok { // beyond the horizon: the scan's
			w.settle(nil, it)
			continue
		}
		confirm, err := on.ch.PublishWithDeferredConfirm(w.exchange, key, true, false, amqp.Publishing{
			ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: strconv.FormatInt(it.ID, 10), Body: body(it.Wake),
		})
		switch {
		case errors.Is(err, amqp.ErrClosed): // not sent: it may go out on the next channel
			on.abandon(err)
			return items[i:]
		case err != nil:
			on.abandon(err)
			w.settle(fmt.Errorf("%w: %w", ErrUnconfirmed, err), it)
			return items[i+1:]
		}
		select {
		case w.window <- sent{it, on, now, confirm}:
		case <-w.ctx.Done():
			w.settle(fmt.Errorf("%w: %w", ErrUnconfirmed, ErrClosed), it)
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
	b = strconv.AppendQuote(b, wk.Scene) // its alphabet needs no escapes
	return append(b, '}')
}

// ready returns a channel that takes messages: on, or a new one. It waits for
// Patience at most.
func (w *Waker) ready(on *channel) (*channel, error) {
	ctx, cancel := context.WithTimeout(w.ctx, w.cfg.Patience)
	defer cancel()
	for {
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
			if on.cause() == nil {
				return on, nil
			}
			on.close()
		}
		w.current.Store(session)
		if on, err = w.open(ctx, session); err == nil {
			return on, nil
		}
		pause := time.NewTimer(openPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
}
