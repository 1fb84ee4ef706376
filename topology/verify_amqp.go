package topology

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// byAMQP looks with what AMQP offers. A passive declare says whether something
// exists and compares nothing; declaring it again with the right arguments says
// whether those are its arguments.
func (v *verifier) byAMQP(ctx context.Context, conn *amqp.Connection) error {
	// The goroutine may outlive ctx: it fills a verifier of its own.
	result := make(chan *verifier, 1)
	err := inSession(ctx, conn, "ask by AMQP", func(s *session) error {
		own := &verifier{cfg: v.cfg, plan: v.plan}
		err := own.askAll(s)
		result <- own
		return err
	})
	if err != nil {
		return err
	}
	*v = *<-result
	v.add(Difference{
		Severity: Unchecked, Problem: ProblemUnseen, Property: "bindings, policies and feature flags",
		Got: "not visible over AMQP", Fix: "give the address of the management API to check them too",
	})
	return nil
}

func (v *verifier) askAll(s *session) error {
	for _, e := range v.plan.Exchanges {
		err := v.ask(KindExchange, e.Name, func() error {
			return s.do("look for exchange "+e.Name, func(ch *amqp.Channel) error {
				return ch.ExchangeDeclarePassive(e.Name, e.Type, true, false, false, false, nil)
			})
		}, func() error { return s.declareExchange(e) })
		if err != nil {
			return err
		}
	}
	for _, q := range v.plan.Queues {
		err := v.ask(KindQueue, q.Name, func() error {
			_, err := s.depth(q.Name)
			return err
		}, func() error { return s.declareQueue(q) })
		if err != nil {
			return err
		}
	}
	return nil
}

// ask reports what the broker says about one entity, and returns errors that
// say nothing about it.
func (v *verifier) ask(kind EntityKind, name string, exists, declare func() error) error {
	if err := exists(); hasCode(err, amqp.NotFound) {
		v.addMissing(kind, name)
		return nil
	} else if err != nil {
		return err
	}
	err := declare()
	if err == nil {
		return nil
	}
	if hasCode(err, amqp.AccessRefused) {
		v.add(Difference{
			Severity: Unchecked, Problem: ProblemUnseen, Entity: kind, Name: name, Property: "arguments",
			Got: "not comparable without the permission configure",
			Fix: "give the address of the management API, or a user with the permission configure",
		})
		return nil
	}
	err = mismatch(v.cfg, kind, name, err)
	if m := (*MismatchError)(nil); errors.As(err, &m) {
		d := Difference{
			Severity: Broken, Problem: ProblemProperty, Entity: kind, Name: name,
			Property: m.Property, Want: m.Want, Got: m.Got, Fix: m.Fix,
		}
		if d.Property == "" {
			d.Got = m.Err.Error()
		}
		v.add(d)
		return nil
	}
	return err
}
