package dlx

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/topology"
)

const (
	// idle is how long no message has to come before the broker is asked whether there are any.
	idle = 300 * time.Millisecond
	// stuck is how many times in a row it may say that there are, and send none.
	stuck = 50
)

// reader reads a queue without acks. Its owner is the goroutine of the walk.
type reader struct {
	ch       *amqp.Channel
	queue    string
	messages int // that were ready at the start
	arrived  <-chan amqp.Delivery
}

// read subscribes to a queue with a prefetch that covers it. That is for the order: a quorum queue gives what one consumer held
// back in its order, but puts it behind what was given back before and is not held now; and each basic.get is a consumer of its
// own to it.
func read(ch *amqp.Channel, queue string) (*reader, error) {
	messages, err := ready(ch, queue)
	if err != nil {
		return nil, err
	}
	r := &reader{ch: ch, queue: queue, messages: messages}
	if messages == 0 {
		return r, nil
	}
	if err := ch.Qos(min(messages, MaxHeld), 0, false); err != nil {
		return nil, fmt.Errorf("read %s: %w", queue, err)
	}
	if r.arrived, err = ch.Consume(queue, "", false, false, false, false, nil); err != nil {
		return nil, fmt.Errorf("read %s: %w", queue, err)
	}
	return r, nil
}

// ready is how many messages nobody holds.
func ready(ch *amqp.Channel, queue string) (int, error) {
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if ae := (*amqp.Error)(nil); errors.As(err, &ae) && ae.Code == amqp.NotFound {
		return 0, fmt.Errorf("queue %s %w: %w", queue, topology.ErrMissing, err)
	}
	if err != nil {
		return 0, fmt.Errorf("queue %s: %w", queue, err)
	}
	return q.Messages, nil
}

// next returns the next message, or nil when there are none: others took or hold the rest.
func (r *reader) next(ctx context.Context) (*amqp.Delivery, error) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for empty, asked := 0, 0; ; {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case d, ok := <-r.arrived:
			if !ok {
				return nil, fmt.Errorf("read %s: the broker ended the subscription", r.queue)
			}
			return &d, nil
		case <-timer.C:
		}
		n, err := ready(r.ch, r.queue)
		if err != nil {
			return nil, err
		}
		// The last one may be on its way still when the broker says that none is left.
		if asked++; n == 0 {
			empty++
		}
		if empty == 2 {
			return nil, nil
		}
		if asked == stuck {
			return nil, fmt.Errorf("read %s: the broker has %d messages and sends none", r.queue, n)
		}
		timer.Reset(idle)
	}
}
