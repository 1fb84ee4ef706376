package topology

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Delete removes a service's whole topology with all messages in it, whatever
// its kind; what does not exist is skipped. Waiting wake-ups are destroyed: the
// scan publishes them again once the topology is back, late by up to one scan.
// Whole tasks in `submit` and what a person has not looked at yet in `parked`
// are destroyed for good. For tests, and for the end of a service.
func Delete(ctx context.Context, conn *amqp.Connection, cfg Config) error {
	plan, err := NewPlan(cfg)
	if err != nil {
		return err
	}
	return inSession(ctx, conn, "delete the topology of "+cfg.Service, func(s *session) error {
		// The entry goes first, so that publishers get their messages back
		// instead of having them dropped halfway.
		deleteExchange := func(name string) error {
			err := s.do("delete exchange "+name, func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) })
			if err != nil {
				return fmt.Errorf("exchange %s: %w", name, err)
			}
			return nil
		}
		if err := deleteExchange(cfg.Names().Delay()); err != nil {
			return err
		}
		for _, q := range plan.Queues {
			err := s.do("delete queue "+q.Name, func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete(q.Name, false, false, false)
				return err
			})
			if err != nil {
				return fmt.Errorf("queue %s: %w", q.Name, err)
			}
		}
		for _, e := range plan.Exchanges {
			if err := deleteExchange(e.Name); err != nil {
				return err
			}
		}
		return nil
	})
}
