package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
)

// delivery is a wake-up in the claimer's hand.
type delivery struct {
	id         int64
	scene      string // what the message says; the row decides
	tag        uint64
	generation int // of the channel, as tags are
}

// ack settles all deliveries of a channel up to tag. Those of an older channel
// are dropped: the broker has long requeued them.
type ack struct {
	tag        uint64
	generation int
}

// receive is the receiver: it subscribes, again after each loss, until ctx is
// done. It alone touches the channel.
func (c *Consumer) receive(ctx context.Context, prefetch int) {
	paused, said := false, false
	var pause pause
	for generation := 1; ; generation++ {
		for paused {
			select {
			case <-ctx.Done():
				return
			case paused = <-c.paused:
			case <-c.acks: // of a channel that is gone
			}
		}
		began := time.Now()
		var err error
		paused, err = c.subscribe(ctx, generation, prefetch)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !said {
			c.log.Warn("subscription lost, trying again", "error", err)
		}
		said = err != nil && !errors.Is(err, errSubscribed)
		over := time.After(pause.after(time.Since(began)))
		for wait := err != nil; wait; {
			select {
			case <-ctx.Done():
				return
			case paused = <-c.paused:
			case <-c.acks:
			case <-over:
				wait = false
			}
		}
	}
}

// subscribe reads the ready queue until the channel dies (an error), the claimer
// pauses (true) or ctx is done. The channel is closed then, so that the broker
// requeues what was not acknowledged.
func (c *Consumer) subscribe(ctx context.Context, generation, prefetch int) (paused bool, err error) {
	session, paused, err := c.session(ctx)
	if session == nil {
		return paused, err
	}
	if c.cfg.Declare && !c.declared {
		if err := c.declare(ctx, session); err != nil {
			return false, err
		}
	}
	c.declared = false // before the next channel again: who knows why this one ended
	sub, err := c.subscribeTo(ctx, session, c.names.Ready(), prefetch)
	if err != nil {
		return false, err
	}
	defer func() {
		if sub.dead() {
			return
		}
		select {
		case a := <-c.acks: // spares others deliveries that are done with
			if a.generation == generation {
				err = errors.Join(err, sub.ch.Ack(a.tag, true))
			}
		default:
		}
		err = errors.Join(err, sub.close())
	}()
	c.cfg.OnEvent(Event{Kind: EventSubscribed})
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case paused = <-c.paused:
			if paused {
				return true, nil
			}
		case a := <-c.acks:
			if a.generation != generation {
				continue
			}
			if err := sub.ack(a.tag); err != nil {
				return false, err
			}
		case <-sub.cancelled:
			return false, sub.gone()
		case m, ok := <-sub.msgs:
			if !ok {
				return false, sub.lost()
			}
			d, ok := parse(m)
			if !ok {
				c.log.Error("message is not a wake-up, parked", "queue", c.names.Ready(), "message_id", m.MessageId, "bytes", len(m.Body))
				if err := m.Reject(false); err != nil {
					return false, errors.Join(errSubscribed, fmt.Errorf("park: %w", err))
				}
				c.cfg.OnEvent(Event{Kind: EventParked})
				continue
			}
			d.generation = generation
			// The claimer may wait for us to take an ack: take it meanwhile.
			for sent := false; !sent; {
				select {
				case c.arrived <- d:
					sent = true
				case a := <-c.acks:
					if a.generation == generation {
						if err := sub.ack(a.tag); err != nil {
							return false, err
						}
					}
				case paused = <-c.paused:
					if paused {
						return true, nil
					}
				case <-ctx.Done():
					return false, nil
				}
			}
		}
	}
}

// session waits for a connection, and goes on taking the claimer's messages
// meanwhile.
func (c *Consumer) session(ctx context.Context) (*amqpconn.Session, bool, error) {
	if s := c.conn.Live(); s != nil {
		return s, false, nil
	}
	type got struct {
		s   *amqpconn.Session
		err error
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	ch := make(chan got, 1)
	go func() { // ends with wait
		s, err := c.conn.Session(wait)
		ch <- got{s, err}
	}()
	for {
		select {
		case g := <-ch:
			return g.s, false, g.err
		case p := <-c.paused:
			if p {
				return nil, true, nil
			}
		case <-c.acks:
		}
	}
}

// parse reads a wake-up. false: it is none.
func parse(m amqp.Delivery) (delivery, bool) {
	var w struct {
		ID    int64  `json:"id"`
		Scene string `json:"scene"`
	}
	if len(m.Body) > 4096 || json.Unmarshal(m.Body, &w) != nil || w.ID <= 0 {
		return delivery{}, false
	}
	return delivery{id: w.ID, scene: w.Scene, tag: m.DeliveryTag}, true
}
