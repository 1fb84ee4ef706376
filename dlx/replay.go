package dlx

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/retry"
)

var (
	// ErrNoTarget says that a message does not tell where it came from.
	ErrNoTarget = errors.New("it is not known where this message belongs: give a target")
	// ErrUnroutable says that no queue took a replayed message.
	ErrUnroutable = errors.New("no queue takes it there")
	// ErrUnconfirmed says that the broker did not confirm a replayed message. It may have it all the same.
	ErrUnconfirmed = errors.New("the broker did not confirm it")
)

// confirmWait bounds the wait for one confirm.
const confirmWait = 30 * time.Second

// MaxRate is the highest rate of a replay, in messages a second.
const MaxRate = 10_000

// Replay says what is replayed.
type Replay struct {
	Filter Filter
	// To is where all go. Nil: each to its Message.Target.
	To *Target
	// Rate in messages a second, up to MaxRate. Zero: as fast as confirms come, one at a time.
	Rate float64
}

// Replay publishes the messages that r chooses, one after the other in the order of the queue, and calls done for each. A message
// is acknowledged once the broker confirmed its copy: a crash in between leaves both. It ends at the first message that is not
// taken, which stays with all that follow, so that the order is kept. The copy has the body, the properties and the headers but
// those of the broker and the reason; no expiration, at which it would be dropped, and no user id, which the broker compares with
// ours.
//
// Errors are ErrNoTarget, ErrUnroutable, ErrUnconfirmed, and those of Look.
func (b *Box) Replay(ctx context.Context, place Place, r Replay, done func(*Message, Target)) error {
	if !(r.Rate >= 0 && r.Rate <= MaxRate) { // not a number is neither
		return retry.NewFieldError("rate", fmt.Sprint(r.Rate), fmt.Sprintf("0 to %d messages a second", MaxRate))
	}
	return b.withChannel(ctx, func(conn *amqp.Connection, ch *amqp.Channel) error {
		p, err := newPublisher(conn, ch)
		if err != nil {
			return err
		}
		var tick <-chan time.Time
		if r.Rate > 0 {
			ticker := time.NewTicker(time.Duration(float64(time.Second) / r.Rate))
			defer ticker.Stop()
			tick = ticker.C
		}
		first := true
		return b.walk(ctx, place, r.Filter, func(m *Message, d *amqp.Delivery) (bool, error) {
			to := r.To
			if to == nil {
				to = m.Target
			}
			if to == nil {
				return false, fmt.Errorf("replay %s: %w", m.ID, ErrNoTarget)
			}
			if !first && tick != nil {
				select {
				case <-tick:
				case <-ctx.Done():
					return false, context.Cause(ctx)
				}
			}
			first = false
			if err := p.publish(ctx, *to, submit.Copy(d)); err != nil {
				return false, fmt.Errorf("replay %s to exchange %q with the key %q: %w", m.ID, to.Exchange, to.RoutingKey, err)
			}
			if err := d.Ack(false); err != nil {
				return false, fmt.Errorf("replay %s: its copy is published, it is still here too: %w", m.ID, err)
			}
			done(m, *to)
			return true, nil
		})
	})
}

// publisher publishes one message at a time, so that a return can only be about that one. The goroutine of Replay owns it.
type publisher struct {
	ch      *amqp.Channel
	returns chan amqp.Return
	blocked chan amqp.Blocking
	closed  chan *amqp.Error
	alarm   string
}

func newPublisher(conn *amqp.Connection, ch *amqp.Channel) (*publisher, error) {
	p := &publisher{
		ch: ch, returns: ch.NotifyReturn(make(chan amqp.Return, 1)), closed: ch.NotifyClose(make(chan *amqp.Error, 1)),
		// The library waits for room here. An alarm during one publish is told twice at most; more are left unread for as long as
		// a confirm takes.
		blocked: conn.NotifyBlocked(make(chan amqp.Blocking, 64)),
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("publish with confirms: %w", err)
	}
	return p, nil
}

func (p *publisher) publish(ctx context.Context, to Target, msg amqp.Publishing) error {
	for more := true; more; {
		select {
		case b, ok := <-p.blocked:
			if more = ok; ok {
				if p.alarm = ""; b.Active {
					p.alarm = "alarm: " + b.Reason
				}
			}
		default:
			more = false
		}
	}
	if p.alarm != "" { // a write could wait for ever
		return fmt.Errorf("the broker takes no messages: %s", p.alarm)
	}
	ctx, cancel := context.WithTimeout(ctx, confirmWait)
	defer cancel()
	confirm, err := p.ch.PublishWithDeferredConfirmWithContext(ctx, to.Exchange, to.RoutingKey, true, false, msg)
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	if !acked {
		select {
		case err := <-p.closed: // the library nacks all of a channel that died, after it told why
			if err != nil && err.Code == amqp.NotFound {
				return fmt.Errorf("%w: %w", ErrUnroutable, err)
			}
			if err != nil {
				return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
			}
		default:
		}
		return ErrUnconfirmed
	}
	select {
	case <-p.returns: // comes before its ack
		return ErrUnroutable
	default:
		return nil
	}
}
