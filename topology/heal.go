package topology

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// probeWait is how long the broker may take to confirm a probe. All quorum queues of a node write through one log, so they
// take about the same time.
const probeWait = 3 * time.Second

// probeBody is a wake-up for a task that is never there, which any consumer drops after a look.
var probeBody = fmt.Appendf(nil, `{"id":%d,"scene":""}`, int64(math.MaxInt64))

// Heal makes anew those queues of wake-ups (ready and the levels) that the broker lists but has lost, and returns the
// names of all that it made anew. RabbitMQ can lose a quorum queue that was declared seconds before its node was
// killed: it is still listed, a declaration finds nothing wrong, but what is published to it is not confirmed, and whoever
// subscribes loses the whole connection (541 INTERNAL_ERROR).
//
// Each queue gets a probe. One that does not confirm it, twice, where others do, and is said to be empty is lost; a queue
// that is merely full refuses too, but is not empty. The levels that hand on to a lost queue are made anew with it: their dead-lettering remembers
// the lost queue, and would wait for it for ever. No task is lost with a wake-up: the scan publishes it again. The
// queues submit, parked and unrouted hold what nobody else has, and are not touched.
//
// It needs the permissions of Declare, a topology that Declare found complete, and a broker that takes messages. dial is
// called a few times for connections of Heal's own, which it closes: a lost queue can end a connection. The error is
// the context's or the client's, also where the broker answers no probe; then nothing was deleted, or what was
// deleted is missing until the next Declare. It may run in several processes at once.
func Heal(ctx context.Context, dial func(context.Context) (*amqp.Connection, error), cfg Config) (healed []string, err error) {
	plan, err := NewPlan(cfg)
	if err != nil {
		return nil, err
	}
	names := cfg.Names()
	// From the end of a delay to the longest level: each may hand on to those before it. A key of one bit leads to its
	// level, and one of none to ready.
	all := make([]probe, 1+Levels)
	for i := range all {
		delay, queue := time.Duration(0), names.Ready()
		if i > 0 {
			delay, queue = LevelTTL(i-1), names.Level(i-1)
		}
		key, ok := Key(cfg.Service, delay)
		if !ok {
			return nil, fmt.Errorf("no key for %v", delay)
		}
		all[i] = probe{queue: queue, key: key}
	}
	on := func(what string, f func(*session) error) error {
		conn, err := dial(ctx)
		if err != nil {
			return fmt.Errorf("heal: %w", err)
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
		return inSession(ctx, conn, what+" of "+cfg.Service, f)
	}
	lost := all
	for range 2 {
		var missing []probe
		err := on("probe the queues", func(s *session) (err error) { missing, err = s.unconfirmed(names.Delay(), lost, all); return err })
		if err == nil && len(missing) > 0 {
			err = on("look at the queues", func(s *session) (err error) { lost, err = s.empty(missing); return err })
		}
		if err != nil || len(missing) == 0 || len(lost) == 0 {
			return nil, err
		}
	}
	err = on("make the lost queues anew", func(s *session) error {
		healed, err = s.makeAnew(plan, all[slices.Index(all, lost[0]):])
		return err
	})
	return healed, err
}

// probe is a message that reaches one queue first.
type probe struct{ queue, key string }

// unconfirmed publishes all probes and returns those of suspects that were not confirmed. Each has a channel of its own,
// because the broker's end of a channel may hang at a lost queue; they close with the connection.
func (s *session) unconfirmed(exchange string, suspects, all []probe) (missing []probe, err error) {
	confirms := make([]*amqp.DeferredConfirmation, len(all))
	for i, p := range all {
		err := s.do("probe queue "+p.queue, func(ch *amqp.Channel) error {
			if err := ch.Confirm(false); err != nil {
				return fmt.Errorf("confirm mode: %w", err)
			}
			confirms[i], err = ch.PublishWithDeferredConfirm(exchange, p.key, false, false, amqp.Publishing{
				ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: "probe", Body: probeBody,
			})
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("publish to %s: %w", p.queue, err)
		}
		s.ch = nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, probeWait)
	defer cancel()
	some := false
	for i, c := range confirms {
		ok, _ := c.WaitContext(ctx)
		if some = some || ok; !ok && slices.Contains(suspects, all[i]) {
			missing = append(missing, all[i])
		}
	}
	if !some {
		return nil, errors.Join(errors.New("the broker confirmed nothing"), s.ctx.Err())
	}
	return missing, s.ctx.Err()
}

// empty returns those probes whose queue is said to hold nothing.
func (s *session) empty(probes []probe) (out []probe, err error) {
	for _, p := range probes {
		err := s.do("look at queue "+p.queue, func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclarePassive(p.queue, true, false, false, false, nil)
			if err == nil && q.Messages == 0 {
				out = append(out, p)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("queue %s: %w", p.queue, err)
		}
	}
	return out, nil
}

// makeAnew deletes queues and declares them again, with what leads to them.
func (s *session) makeAnew(plan Plan, probes []probe) (made []string, err error) {
	anew := map[string]bool{}
	// The longest first, so that nothing finds its next queue gone.
	for _, p := range slices.Backward(probes) {
		err := s.do("delete queue "+p.queue, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(p.queue, false, false, false)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("queue %s: %w", p.queue, err)
		}
		anew[p.queue] = true
	}
	for _, q := range plan.Queues {
		if !anew[q.Name] {
			continue
		}
		if err := s.declareQueue(q); err != nil {
			return made, fmt.Errorf("queue %s: %w", q.Name, err)
		}
		made = append(made, q.Name)
	}
	var bindings []Binding
	for _, b := range plan.Bindings {
		if b.DestinationKind == KindQueue && anew[b.Destination] {
			bindings = append(bindings, b)
		}
	}
	return made, s.bindAll(bindings)
}
