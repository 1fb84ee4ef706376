package topology

import (
	"context"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Severity says what a Difference means.
type Severity string

// The severities.
const (
	// Broken: delays or deliveries do not work as planned.
	Broken Severity = "broken"
	// Risk: something that a person should look at.
	Risk Severity = "risk"
	// Unchecked: Verify could not see it. Not a fault.
	Unchecked Severity = "unchecked"
)

// Problem is the kind of a Difference. The strings are stable.
type Problem string

// The problems.
const (
	ProblemMissing  Problem = "missing"  // an entity or binding is not there
	ProblemProperty Problem = "property" // a type or argument is not the plan's
	ProblemExtra    Problem = "extra"    // a binding that is not in the plan
	ProblemPolicy   Problem = "policy"   // a policy changes what must not change
	ProblemMessages Problem = "messages" // messages where there should be none
	ProblemBroker   Problem = "broker"   // the broker lacks something
	ProblemUnseen   Problem = "unseen"   // could not be checked
)

// Difference is one difference between what should be and what is.
type Difference struct {
	Severity Severity   `json:"severity"`
	Problem  Problem    `json:"problem"`
	Entity   EntityKind `json:"entity,omitempty"`
	Name     string     `json:"name,omitempty"` // of the entity; of a binding, its String
	Property string     `json:"property,omitempty"`
	Want     string     `json:"want,omitempty"`
	Got      string     `json:"got,omitempty"`
	Fix      string     `json:"fix"` // what to do about it
}

// String is a line for people.
func (d Difference) String() string {
	s := fmt.Sprintf("%s: %s", d.Severity, d.Problem)
	if d.Entity != "" {
		s += fmt.Sprintf(": %s %s", d.Entity, d.Name)
	}
	if d.Property != "" {
		s += ": " + d.Property
	}
	switch {
	case d.Want != "" && d.Got != "":
		s += fmt.Sprintf(" is %s, should be %s", d.Got, d.Want)
	case d.Want != "":
		s += " should be " + d.Want
	case d.Got != "":
		s += ": " + d.Got
	}
	return s + "; fix: " + d.Fix
}

// Verify compares a service's topology on the broker with the plan and returns
// every difference, each with its fix; none means that all is well. It changes
// nothing.
//
// managementURL is the address of the management API of the same broker, with
// a user who has at least the tag management, such as
// https://user:password@rabbit.example:15671. With it types, arguments,
// bindings and the policies in effect are compared exactly. Without it (empty)
// Verify asks by AMQP, which tells what exists and, by declaring again what
// exists, whether its arguments are right; a Difference of severity Unchecked
// says what could not be seen. (An entity that is deleted in the instant
// between the two questions would be made again.) The virtual host is the
// connection's.
//
// It returns a *retry.FieldError for a bad cfg or managementURL, and the
// context's, the client's or the management API's error if it could not look.
func Verify(ctx context.Context, conn *amqp.Connection, managementURL string, cfg Config) ([]Difference, error) {
	plan, err := NewPlan(cfg)
	if err != nil {
		return nil, err
	}
	v := &verifier{cfg: cfg.WithDefaults(), plan: plan}
	if managementURL == "" {
		err = v.byAMQP(ctx, conn)
	} else {
		err = v.byManagement(ctx, conn, managementURL)
	}
	if err != nil {
		return nil, fmt.Errorf("verify the topology of %s: %w", v.cfg.Service, err)
	}
	// Only AMQP knows the number of the moment; the management API's is
	// seconds old.
	if !v.missing[entityKey{KindQueue, v.cfg.Names().Unrouted()}] {
		depth, err := Depth(ctx, conn, v.cfg.Names().Unrouted())
		if err != nil {
			return nil, fmt.Errorf("verify the topology of %s: %w", v.cfg.Service, err)
		}
		v.checkUnrouted(depth)
	}
	return v.found, nil
}

type entityKey struct {
	kind EntityKind
	name string
}

// verifier collects differences.
type verifier struct {
	cfg     Config
	plan    Plan
	found   []Difference
	missing map[entityKey]bool
}

func (v *verifier) add(d Difference) { v.found = append(v.found, d) }

func (v *verifier) addMissing(kind EntityKind, name string) {
	if v.missing == nil {
		v.missing = map[entityKey]bool{}
	}
	v.missing[entityKey{kind, name}] = true
	v.add(Difference{Severity: Broken, Problem: ProblemMissing, Entity: kind, Name: name, Fix: fixDeclare})
}

func (v *verifier) addProperty(kind EntityKind, name, property, want, got string) {
	v.add(Difference{
		Severity: Broken, Problem: ProblemProperty, Entity: kind, Name: name,
		Property: property, Want: want, Got: got, Fix: fixProperty(v.cfg, kind, name, property, got),
	})
}

func (v *verifier) checkUnrouted(depth int) {
	if depth == 0 {
		return
	}
	v.add(Difference{
		Severity: Risk, Problem: ProblemMessages, Entity: KindQueue, Name: v.cfg.Names().Unrouted(),
		Property: "messages", Want: "0", Got: fmt.Sprint(depth),
		Fix: "look at their routing keys for who sent them, repair missing bindings, then purge the queue (due tasks are found by the scan)",
	})
}

// compareArguments reports each argument that differs. Numbers are compared as
// numbers, whatever their type on the wire.
func (v *verifier) compareArguments(kind EntityKind, name string, want, got Arguments) {
	names := append(want.sortedKeys(), got.sortedKeys()...)
	slices.Sort(names)
	for _, arg := range slices.Compact(names) {
		w, g := argText(want, arg), argText(got, arg)
		if w != g {
			v.addProperty(kind, name, arg, w, g)
		}
	}
}

func argText(args Arguments, name string) string {
	value, ok := args[name]
	if !ok {
		return "none"
	}
	return fmt.Sprint(value)
}
