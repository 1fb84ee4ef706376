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
// It needs the permissions of Declare, a topology that Declare found complete, and a broker that takes messages. The
// error is the context's or the client's, also where the broker answers no probe; then nothing was deleted, or what
// was deleted is missing until the next Declare. It may run in several processes at once.
func Heal(ctx context.Context, conn *amqp.Connection, cfg Config) (healed []string, err error) {
	plan, err := NewPlan(cfg)
	if err != nil {
		return nil, err
	}
	names := cfg.Names()
	err = inSession(ctx, conn, "heal the queues of "+cfg.Service, func(s *session) error {
		// From the end of a delay to the longest level: each may hand on to those before it.
		probes := []probe{{queue: names.Ready(), key: names.Ready()}} // by the default exchange
		for level := range Levels {
			key, ok := Key(cfg.Service, LevelTTL(level))
			if !ok {
				return fmt.Errorf("no key for level %d", level) // of one bit each
			}
			probes = append(probes, probe{queue: names.Level(level), exchange: names.Delay(), key: key})
		}
		all := probes
		s.drop() // each probe gets a channel of its own
		for range 2 {
			if probes, err = s.unconfirmed(probes, all); err != nil || len(probes) == 0 {
				return err
			}
		}
		anew := map[string]bool{}
		// The longest first, so that nothing finds its next queue gone.
		for _, p := range slices.Backward(all[slices.Index(all, probes[0]):]) {
			err := s.do("delete queue "+p.queue, func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete(p.queue, false, false, false)
				return err
			})
			if err != nil {
				return fmt.Errorf("queue %s: %w", p.queue, err)
			}
			anew[p.queue] = true
		}
		for _, q := range plan.Queues {
			if !anew[q.Name] {
				continue
			}
			if err := s.declareQueue(q); err != nil {
				return mismatch(cfg.WithDefaults(), KindQueue, q.Name, err)
			}
			healed = append(healed, q.Name)
		}
		var bindings []Binding
		for _, b := range plan.Bindings {
			if b.DestinationKind == KindQueue && anew[b.Destination] {
				bindings = append(bindings, b)
			}
		}
		return s.bindAll(bindings)
	})
	return healed, err
}

// probe is a message that reaches one queue first.
type probe struct{ queue, exchange, key string }

// unconfirmed publishes all probes and returns those of suspects that an empty queue did not confirm.
func (s *session) unconfirmed(suspects, all []probe) (lost []probe, err error) {
	missing, err := s.publishProbes(suspects, all)
	if err != nil {
		return nil, err
	}
	for _, p := range missing {
		err := s.do("look at queue "+p.queue, func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclarePassive(p.queue, true, false, false, false, nil)
			if err == nil && q.Messages == 0 {
				lost = append(lost, p)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("queue %s: %w", p.queue, err)
		}
	}
	return lost, nil
}

// publishProbes publishes each probe on a channel of its own, because the broker's end of a channel may hang at a lost
// queue. Such a channel is not waited for: it closes when the broker goes on, or with the connection.
func (s *session) publishProbes(suspects, all []probe) (missing []probe, err error) {
	confirms := make([]*amqp.DeferredConfirmation, len(all))
	for i, p := range all {
		err := s.do("probe queue "+p.queue, func(ch *amqp.Channel) error {
			if err := ch.Confirm(false); err != nil {
				return fmt.Errorf("confirm mode: %w", err)
			}
			confirms[i], err = ch.PublishWithDeferredConfirm(p.exchange, p.key, false, false, amqp.Publishing{
				ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: "probe", Body: probeBody,
			})
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("publish to %s: %w", p.queue, err)
		}
		ch := s.ch
		s.ch = nil
		defer func() { go func() { _ = ch.Close() }() }()
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
