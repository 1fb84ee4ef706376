package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// byManagement compares everything through the management API. It asks for
// each entity by itself, which does not grow with what else the virtual host
// holds.
func (v *verifier) byManagement(ctx context.Context, conn *amqp.Connection, address string) error {
	vhost := conn.Config.Vhost
	if vhost == "" {
		vhost = "/"
	}
	m, err := newManagement(address, vhost)
	if err != nil {
		return err
	}
	defer m.close()
	if err := sameBroker(ctx, conn, m); err != nil {
		return err
	}
	if err := v.checkFlags(ctx, m); err != nil {
		return err
	}
	for _, e := range v.plan.Exchanges {
		if err := v.checkExchange(ctx, m, e); err != nil {
			return err
		}
	}
	for _, q := range v.plan.Queues {
		if err := v.checkQueue(ctx, m, q); err != nil {
			return err
		}
	}
	if err := v.checkBindings(ctx, m); err != nil {
		return err
	}
	return v.checkPolicies(ctx, m)
}

// sameBroker refuses to compare the plan with another cluster than the one
// that the service uses.
func sameBroker(ctx context.Context, conn *amqp.Connection, m *management) error {
	var overview apiOverview
	if err := m.get(ctx, &overview, "overview"); err != nil {
		return err
	}
	name, _ := conn.Properties["cluster_name"].(string)
	if name != "" && overview.ClusterName != "" && name != overview.ClusterName {
		return fmt.Errorf("management api: belongs to cluster %q, the AMQP address to %q", overview.ClusterName, name)
	}
	return nil
}

// checkFlags finds an upgraded RabbitMQ 3.10 or 3.11 that accepts
// at-least-once and dead-letters at most once all the same.
func (v *verifier) checkFlags(ctx context.Context, m *management) error {
	if v.cfg.Kind != Quorum {
		return nil
	}
	var flags []apiFlag
	if err := m.get(ctx, &flags, "feature-flags"); errors.Is(err, errRefused) {
		v.addUnseen("feature flags", "administrator")
		return nil
	} else if err != nil {
		return err
	}
	for _, f := range flags {
		if f.Name == "stream_queue" && f.State == "disabled" {
			v.add(Difference{
				Severity: Broken, Problem: ProblemBroker, Property: "feature flag stream_queue", Want: "enabled", Got: "disabled",
				Fix: "run rabbitmqctl enable_feature_flag all: without it quorum queues dead-letter at most once",
			})
		}
	}
	return nil
}

func (v *verifier) addUnseen(what, tag string) {
	v.add(Difference{
		Severity: Unchecked, Problem: ProblemUnseen, Property: what, Got: "not visible to this user of the management API",
		Fix: "use a user with the tag " + tag,
	})
}

func (v *verifier) checkExchange(ctx context.Context, m *management, want Exchange) error {
	var got apiExchange
	if err := m.get(ctx, &got, "exchanges", m.vhost, want.Name); errors.Is(err, errNoObject) {
		v.addMissing(KindExchange, want.Name)
		return nil
	} else if err != nil {
		return err
	}
	if got.Type != want.Type {
		v.addProperty(KindExchange, want.Name, "type", want.Type, got.Type)
	}
	v.checkFlag(KindExchange, want.Name, "durable", true, got.Durable)
	v.checkFlag(KindExchange, want.Name, "auto_delete", false, got.AutoDelete)
	v.checkFlag(KindExchange, want.Name, "internal", false, got.Internal)
	v.compareArguments(KindExchange, want.Name, want.Arguments, Arguments(got.Arguments))
	return nil
}

func (v *verifier) checkQueue(ctx context.Context, m *management, want Queue) error {
	var got apiQueue
	if err := m.get(ctx, &got, "queues", m.vhost, want.Name); errors.Is(err, errNoObject) {
		v.addMissing(KindQueue, want.Name)
		return nil
	} else if err != nil {
		return err
	}
	v.checkFlag(KindQueue, want.Name, "durable", true, got.Durable)
	v.checkFlag(KindQueue, want.Name, "auto_delete", false, got.AutoDelete)
	v.checkFlag(KindQueue, want.Name, "exclusive", false, got.Exclusive)
	v.compareArguments(KindQueue, want.Name, want.Arguments, Arguments(got.Arguments))
	return nil
}

func (v *verifier) checkFlag(kind EntityKind, name, property string, want, got bool) {
	if want != got {
		v.addProperty(kind, name, property, fmt.Sprint(want), fmt.Sprint(got))
	}
}

// checkBindings compares what leaves each exchange of ours, and looks for
// foreign exchanges that feed the ways of wake-ups. Submit and dead may be fed
// by others: whole tasks come from any client, and other queues may
// dead-letter here.
func (v *verifier) checkBindings(ctx context.Context, m *management) error {
	names := v.cfg.Names()
	want := map[Binding]bool{}
	for _, b := range v.plan.Bindings {
		if !v.missing[entityKey{KindExchange, b.Source}] && !v.missing[entityKey{b.DestinationKind, b.Destination}] {
			want[b] = true // else the missing entity tells it all
		}
	}
	extra := map[string]bool{}
	take := func(list []apiBinding) {
		for _, got := range list {
			if got.Source == "" {
				continue // the default exchange's, which every queue has
			}
			b := Binding{got.Source, EntityKind(got.DestinationType), got.Destination, got.RoutingKey}
			if len(got.Arguments) == 0 && slices.Contains(v.plan.Bindings, b) {
				delete(want, b)
				continue
			}
			name := b.String()
			if len(got.Arguments) > 0 {
				name += " with arguments " + Arguments(got.Arguments).String()
			}
			if extra[name] {
				continue
			}
			extra[name] = true
			v.add(Difference{
				Severity: Risk, Problem: ProblemExtra, Entity: KindBinding, Name: name,
				Fix: fmt.Sprintf("unbind it in the management UI (%s, Bindings), unless it is meant to be: wake-ups may be copied or come at other times", got.Source),
			})
		}
	}
	for _, e := range v.plan.Exchanges {
		if v.missing[entityKey{KindExchange, e.Name}] {
			continue
		}
		ends := []string{"source"}
		if e.Name != names.Submit() && e.Name != names.Dead() {
			ends = append(ends, "destination")
		}
		for _, end := range ends {
			var list []apiBinding
			if err := m.get(ctx, &list, "exchanges", m.vhost, e.Name, "bindings", end); err != nil && !errors.Is(err, errNoObject) {
				return err
			}
			take(list)
		}
	}
	for _, q := range v.plan.Queues {
		if v.missing[entityKey{KindQueue, q.Name}] || q.Name == names.Submit() || q.Name == names.Parked() {
			continue
		}
		var list []apiBinding
		if err := m.get(ctx, &list, "queues", m.vhost, q.Name, "bindings"); err != nil && !errors.Is(err, errNoObject) {
			return err
		}
		take(list)
	}
	for _, b := range v.plan.Bindings {
		if want[b] {
			v.add(Difference{Severity: Broken, Problem: ProblemMissing, Entity: KindBinding, Name: b.String(), Fix: fixDeclare})
		}
	}
	return nil
}
