package waker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
)

const (
	// endWait is how long the broker may take to agree to the end of a channel: less
	// than closeGrace, so that it is not taken for a write that hangs.
	endWait = closeGrace / 2
	// reasonWait is how long the reason of a channel's death may take to arrive once
	// the channel is known to be dead.
	reasonWait = 500 * time.Millisecond
	// missingHold is how long nothing is published after the broker said that
	// there is no such exchange: each try costs a channel.
	missingHold = 500 * time.Millisecond
)

// channel is an AMQP channel in confirm mode. The publisher owns it: it alone publishes
// on it and closes it. The collector reads what comes back, and may abandon it.
type channel struct {
	ch      *amqp.Channel
	session *amqpconn.Session
	// returns has room for all that can be outstanding, so that the library's reader,
	// which serves the whole connection, never waits.
	returns   chan amqp.Return
	closed    chan *amqp.Error
	abandoned chan struct{}  // closed by abandon
	returned  map[string]int // by message id; the collector's

	mu   sync.Mutex
	why  error     // of its death
	died time.Time // when that was noticed, soon where something was outstanding
}

func (w *Waker) open(ctx context.Context, session *amqpconn.Session) (*channel, error) {
	c := &channel{session: session, abandoned: make(chan struct{}), returned: map[string]int{}}
	ch, err := session.OpenChannel(ctx, func(ch *amqp.Channel) error {
		// Outstanding are the window, and one each in the publisher's and the
		// collector's hands.
		c.returns = ch.NotifyReturn(make(chan amqp.Return, w.cfg.Window+2))
		c.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
		return ch.Confirm(false)
	})
	if err != nil {
		return nil, err
	}
	c.ch = ch
	return c, nil
}

// cause says why nothing more may be published on c; nil while it lives. It waits, for
// reasonWait at most, where c is dead and the reason is on its way.
func (c *channel) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != nil {
		return c.why
	}
	select {
	case err, ok := <-c.closed:
		if c.why = amqp.ErrClosed; ok && err != nil {
			c.why = err
		}
	default:
		c.why = c.session.Err()
	}
	if c.why == nil && c.ch.IsClosed() {
		// The library refuses to publish as soon as it has read the broker's word; the
		// reason follows once it has answered.
		late := time.NewTimer(reasonWait)
		defer late.Stop()
		c.why = amqp.ErrClosed
		select {
		case err, ok := <-c.closed:
			if ok && err != nil {
				c.why = err
			}
		case <-late.C:
		}
	}
	if c.why != nil {
		c.why, c.died = amqpconn.Refused(c.why, "write"), time.Now()
	}
	return c.why
}

// missing returns until when c's death means that the exchange is missing.
func (c *channel) missing() (until time.Time, err error) {
	var ae *amqp.Error
	if err := c.cause(); !errors.As(err, &ae) || !ae.Server || ae.Code != amqp.NotFound {
		return time.Time{}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.died.Add(missingHold), fmt.Errorf("%w: %w", ErrUnroutable, ae)
}

// abandon says that what is outstanding on c is unknown, and that nothing more may be
// published on it.
func (c *channel) abandon(why error) {
	_ = c.cause() // the broker's reason, if there is one, goes before ours
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil {
		c.why, c.died = why, time.Now()
	}
	select {
	case <-c.abandoned:
	default:
		close(c.abandoned)
	}
}

// close is the publisher's alone: a message that overtakes the closing of its channel
// ends the whole connection (504 CHANNEL_ERROR). It takes a goroutine, because a broker
// that does not read does not answer either; it ends with the connection at the latest.
func (c *channel) close() <-chan struct{} {
	c.abandon(ErrClosed)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.ch.Close()
	}()
	return done
}

// end closes c and gives the broker a moment to agree.
func (c *channel) end() {
	late := time.NewTimer(endWait)
	defer late.Stop()
	select {
	case <-c.close():
	case <-late.C:
	}
}
