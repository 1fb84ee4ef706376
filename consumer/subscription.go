package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/topology"
)

var (
	// errSubscribed is joined to the error of a subscription that worked before.
	errSubscribed = errors.New("was subscribed")
	// errQueueGone is the broker's end of a subscription.
	errQueueGone = errors.New("the broker ended the subscription: was the queue deleted?")
)

// subscription is a channel that reads a queue. It belongs to the goroutine of its role.
type subscription struct {
	ch        *amqp.Channel
	session   *amqpconn.Session
	queue     string
	msgs      <-chan amqp.Delivery
	closed    chan *amqp.Error
	cancelled chan string
}

func (c *Consumer) subscribeTo(ctx context.Context, session *amqpconn.Session, queue string, prefetch int) (*subscription, error) {
	s := &subscription{session: session, queue: queue, closed: make(chan *amqp.Error, 1), cancelled: make(chan string, 1)}
	ch, err := session.OpenChannel(ctx, func(ch *amqp.Channel) error {
		ch.NotifyClose(s.closed)
		ch.NotifyCancel(s.cancelled)
		if err := ch.Qos(prefetch, 0, false); err != nil {
			return fmt.Errorf("set prefetch: %w", err)
		}
		var err error
		if s.msgs, err = ch.Consume(queue, c.cfg.Name, false, false, false, false, nil); err != nil {
			return fmt.Errorf("subscribe to %s: %w", queue, amqpconn.Refused(err, "read"))
		}
		return nil
	})
	s.ch = ch
	return s, err
}

// dead reports whether nothing can be acknowledged any more.
func (s *subscription) dead() bool { return s.session.Err() != nil || s.ch.IsClosed() }

// ack settles everything up to tag.
func (s *subscription) ack(tag uint64) error {
	if err := s.ch.Ack(tag, true); err != nil {
		return errors.Join(errSubscribed, fmt.Errorf("acknowledge: %w", err))
	}
	return nil
}

// gone is the error after a cancellation.
func (s *subscription) gone() error {
	return errors.Join(errSubscribed, fmt.Errorf("%s: %w", s.queue, errQueueGone))
}

// lost is the error after the end of msgs.
func (s *subscription) lost() error {
	err := amqp.ErrClosed
	select {
	case e := <-s.closed:
		if e != nil {
			err = e
		}
	default:
	}
	return errors.Join(errSubscribed, err)
}

// missing reports whether a subscription failed, or ended, because there is no such queue.
func missing(err error) bool {
	var ae *amqp.Error
	return errors.Is(err, errQueueGone) || errors.As(err, &ae) && ae.Code == amqp.NotFound
}

func (c *Consumer) topology() topology.Config {
	return topology.Config{Service: c.cfg.Service, Kind: c.cfg.Kind}
}

func (c *Consumer) declare(ctx context.Context, session *amqpconn.Session) error {
	err := topology.Declare(ctx, session.Connection, c.topology())
	if err != nil {
		return fmt.Errorf("declare topology: %w", err)
	}
	return nil
}

// close closes the channel, which the broker then requeues from. A broker that does
// not answer is not waited for: the goroutine ends with the connection.
func (s *subscription) close() error {
	done := make(chan error, 1)
	go func() { done <- s.ch.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * time.Second):
		return errors.New("close channel: the broker does not answer")
	}
}

// The pauses between subscriptions. A queue that the broker has lost (see topology.Heal) ends each one at once, and the
// whole connection, which others use too.
const (
	shortestPause = 200 * time.Millisecond
	longestPause  = 5 * time.Second
)

// pause is how long to wait before the next subscription. The zero value is ready to use.
type pause time.Duration

// after returns the pause after a subscription that lasted so long: each is twice the one before, until one has
// lasted longer than the longest pause.
func (p *pause) after(lasted time.Duration) time.Duration {
	if *p = min(2*max(*p, pause(shortestPause)/2), pause(longestPause)); lasted > longestPause {
		*p = pause(shortestPause)
	}
	return time.Duration(*p)
}
