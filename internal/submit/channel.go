package submit

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
)

// channel is an AMQP channel in confirm mode, for one batch after the other. The Sender's
// goroutine owns it.
type channel struct {
	ch      *amqp.Channel
	session *amqpconn.Session
	returns chan amqp.Return // has room for a batch, so that the library's reader never waits
	closed  chan *amqp.Error
	why     error // of its death
}

func (s *Sender) open() (*channel, error) {
	session := s.cfg.Conn.Live()
	switch {
	case session == nil:
		return nil, errors.New("connection lost")
	case session.Blocked() != "":
		return nil, fmt.Errorf("it takes no messages: %s", session.Blocked())
	}
	s.mu.Lock()
	s.session = session
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, openWait)
	defer cancel()
	c := &channel{session: session}
	ch, err := session.OpenChannel(ctx, func(ch *amqp.Channel) error {
		c.returns = ch.NotifyReturn(make(chan amqp.Return, maxBatch))
		c.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
		return ch.Confirm(false)
	})
	if err != nil {
		return nil, err
	}
	c.ch = ch
	return c, nil
}

// usable reports whether a batch may be published on c.
func (c *channel) usable() bool {
	return c != nil && !c.ch.IsClosed() && c.session.Err() == nil && c.session.Blocked() == ""
}

// outcome is what a confirm says, once it is there.
func (c *channel) outcome(confirm *amqp.DeferredConfirmation, returned map[string]bool, messageID string) error {
	if confirm.Acked() {
		for more := true; more; { // a return comes before its ack
			select {
			case r, open := <-c.returns:
				if more = open; open {
					returned[r.MessageId] = true
				}
			default:
				more = false
			}
		}
		if returned[messageID] {
			return ErrUnroutable
		}
		return nil
	}
	if c.cause() != nil { // the client library nacks all of a channel that died
		return c.unconfirmed()
	}
	return ErrNacked
}

// cause says why the channel died; nil while it lives. The library tells the reason before it
// nacks.
func (c *channel) cause() error {
	if c.why != nil {
		return c.why
	}
	select {
	case err, ok := <-c.closed:
		if c.why = amqp.ErrClosed; ok && err != nil {
			c.why = err
		}
	default:
		if c.why = c.session.Err(); c.why == nil && c.ch.IsClosed() {
			c.why = amqp.ErrClosed
		}
	}
	return c.why
}

// unconfirmed is the error of a message without a confirm.
func (c *channel) unconfirmed() error {
	var ae *amqp.Error
	switch err := c.cause(); {
	case err == nil:
		return fmt.Errorf("%w in time", ErrUnconfirmed)
	case errors.As(err, &ae) && ae.Server && ae.Code == amqp.NotFound:
		return fmt.Errorf("%w: %w", ErrUnroutable, err)
	default:
		return fmt.Errorf("%w: %w", ErrUnconfirmed, amqpconn.Refused(err, "write"))
	}
}

// close closes the channel in a goroutine, because a broker that does not read does not
// answer either; it ends with the connection at the latest.
func (c *channel) close() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.ch.Close()
	}()
	return done
}

// end closes the channel and gives the broker a moment to agree.
func (c *channel) end() {
	late := time.NewTimer(closeWait)
	defer late.Stop()
	select {
	case <-c.close():
	case <-late.C:
	}
}
