package dlx

import (
	"context"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/retry"
)

// Filter chooses messages. The zero value chooses all.
type Filter struct {
	IDs       []string      // any of these
	MessageID string        // the publisher's
	Scene     string        // of a submitted task
	From      string        // Message.From
	Reason    string        // a part of Message.Reason
	MinAge    time.Duration // by this machine's clock and Message.Since; messages whose age is not known are left out
	// Limit of the messages chosen. Zero: none.
	Limit int
}

// Zero reports whether f chooses every message.
func (f Filter) Zero() bool {
	return len(f.IDs) == 0 && f.MessageID == "" && f.Scene == "" && f.From == "" && f.Reason == "" && f.MinAge == 0 && f.Limit == 0
}

func (f Filter) check() error {
	if f.MinAge < 0 {
		return retry.NewFieldError("min_age", f.MinAge.String(), "0s or more")
	}
	if f.Limit < 0 {
		return retry.NewFieldError("limit", fmt.Sprint(f.Limit), "0 or more")
	}
	return nil
}

func (f Filter) matches(m *Message, now time.Time) bool {
	return (f.MessageID == "" || f.MessageID == m.MessageID) && (f.Scene == "" || f.Scene == m.Scene()) && (f.From == "" || f.From == m.From) &&
		strings.Contains(m.Reason, f.Reason) && (f.MinAge == 0 || !m.Since.IsZero() && now.Sub(m.Since) >= f.MinAge)
}

// MaxHeld is how many messages a walk can pass over, and AMQP's highest prefetch.
const MaxHeld = 65_535

// ErrTooMany says that a walk ended after MaxHeld messages that it left where they are.
var ErrTooMany = fmt.Errorf("a look holds at most %d messages, and there are more: those behind were not seen", MaxHeld)

// walk calls visit for the messages that f chooses, in the order of the queue, until visit returns an error. visit reports whether
// it settled the message. The walk ends after as many messages as there were at its start, so that it does not meet what visit
// sent back here.
func (b *Box) walk(ctx context.Context, place Place, f Filter, visit func(*Message, *amqp.Delivery) (settled bool, err error)) error {
	queue, err := b.queue(place)
	if err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	return b.withChannel(ctx, func(_ *amqp.Connection, ch *amqp.Channel) error {
		r, err := read(ch, queue)
		if err != nil {
			return err
		}
		wanted := map[string]bool{}
		for _, id := range f.IDs {
			wanted[id] = true
		}
		byID, chosen, held, same := len(wanted) > 0, 0, 0, map[string]int{}
		for range r.messages {
			if held == MaxHeld {
				return fmt.Errorf("queue %s: %w", queue, ErrTooMany)
			}
			d, err := r.next(ctx)
			if err != nil || d == nil {
				return err
			}
			held++
			id := fingerprint(d)
			if same[id]++; same[id] > 1 {
				id = fmt.Sprintf("%s.%d", id, same[id])
			}
			if byID && !wanted[id] {
				continue
			}
			delete(wanted, id)
			if m := b.message(place, id, d); f.matches(m, time.Now()) {
				settled, err := visit(m, d)
				if err != nil {
					return err
				}
				if settled {
					held--
				}
				chosen++
			}
			if f.Limit > 0 && chosen == f.Limit || byID && len(wanted) == 0 {
				break
			}
		}
		return nil
	})
}

// Look calls visit for the messages that f chooses, in order, and leaves all as they were. It holds what it has passed, so keep
// visit short. visit's error ends it and is returned. Other errors are topology.ErrMissing, ErrTooMany, a *retry.FieldError,
// the broker's, and ctx's.
func (b *Box) Look(ctx context.Context, place Place, f Filter, visit func(*Message) error) error {
	return b.walk(ctx, place, f, func(m *Message, _ *amqp.Delivery) (bool, error) { return false, visit(m) })
}

// Drop deletes the messages that f chooses for ever and calls done for each. Errors are as those of Look; after one, those that
// done was told of may be there still.
func (b *Box) Drop(ctx context.Context, place Place, f Filter, done func(*Message)) error {
	return b.walk(ctx, place, f, func(m *Message, d *amqp.Delivery) (bool, error) {
		if err := d.Ack(false); err != nil {
			return false, fmt.Errorf("drop %s: %w", m.ID, err)
		}
		done(m)
		return true, nil
	})
}
