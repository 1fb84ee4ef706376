package topology

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Declare makes what is missing of a service's topology on the broker, in the
// connection's virtual host. It is idempotent, never deletes or changes
// anything, and may run in several processes at once. The user needs the
// permissions configure, write and read on spillway.v1.<service>.*.
//
// It returns a *retry.FieldError for a bad cfg, a *MismatchError if something
// exists with other properties (run Verify for the whole list), and otherwise
// the context's or the client's error. After an error part of the topology may
// exist; the delayed exchange is bound last, so nothing gets lost in it.
func Declare(ctx context.Context, conn *amqp.Connection, cfg Config) error {
	plan, err := NewPlan(cfg)
	if err != nil {
		return err
	}
	cfg = cfg.WithDefaults()
	return inSession(ctx, conn, "declare the topology of "+cfg.Service, func(s *session) error {
		for _, e := range plan.Exchanges {
			if err := s.declareExchange(e); err != nil {
				return mismatch(cfg, KindExchange, e.Name, err)
			}
		}
		for _, q := range plan.Queues {
			if err := s.declareQueue(q); err != nil {
				return mismatch(cfg, KindQueue, q.Name, err)
			}
		}
		return s.bindAll(plan.Bindings)
	})
}

func (s *session) declareExchange(e Exchange) error {
	return s.do("declare exchange "+e.Name, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(e.Name, e.Type, true, false, false, false, e.Arguments.table())
	})
}

func (s *session) declareQueue(q Queue) error {
	return s.do("declare queue "+q.Name, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments.table())
		return err
	})
}

// bindAll sends all bindings without waiting for an answer to each, which over
// a slow network is most of the time of a declaration. Calls on a channel are
// worked off in order and an error closes it, so the answer to the last one
// is the answer to all.
func (s *session) bindAll(bindings []Binding) error {
	for i, b := range bindings {
		noWait := i < len(bindings)-1
		err := s.do("bind "+b.String(), func(ch *amqp.Channel) error {
			if b.DestinationKind == KindExchange {
				return ch.ExchangeBind(b.Destination, b.Key, b.Source, noWait, nil)
			}
			return ch.QueueBind(b.Destination, b.Key, b.Source, noWait, nil)
		})
		if err != nil {
			return fmt.Errorf("bind: %w", err) // the broker's text names the entities
		}
	}
	return nil
}

func (a Arguments) table() amqp.Table {
	if len(a) == 0 {
		return nil
	}
	t := make(amqp.Table, len(a))
	for k, v := range a {
		t[k] = v
	}
	return t
}
