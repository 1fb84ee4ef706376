package topology

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrMissing is in the chain of errors about a queue or exchange that the
// broker does not have.
var ErrMissing = errors.New("does not exist on the broker")

// MismatchError says that an entity exists with other structural properties
// than the plan's. Nothing was changed or deleted.
type MismatchError struct {
	Entity EntityKind
	Name   string
	// Property is the argument or property that differs, such as
	// x-message-ttl. Empty if the broker's text, which is in Err, did not say.
	Property string
	Want     string // what the plan says
	Got      string // what the broker has
	Fix      string // what a person can do
	Err      error  // the broker's answer, an *amqp.Error
}

// Error implements error.
func (e *MismatchError) Error() string {
	what := fmt.Sprintf("%s %s exists with other properties: %v", e.Entity, e.Name, e.Err)
	if e.Property != "" {
		what = fmt.Sprintf("%s %s exists with %s %s where %s is needed", e.Entity, e.Name, e.Property, e.Got, e.Want)
	}
	return what + "; fix: " + e.Fix
}

// Unwrap returns the broker's answer.
func (e *MismatchError) Unwrap() error { return e.Err }

// Such as: PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q'
// in vhost '/': received the value '200' of type 'signedint' but current is none.
var (
	inequivalent = regexp.MustCompile(`inequivalent arg '([^']*)' for .*: received (.*) but current is (.*)$`)
	quoted       = regexp.MustCompile(`'([^']*)'`)
)

// mismatch makes a MismatchError of the broker's answer 406, and wraps other
// errors with the entity's name.
func mismatch(cfg Config, entity EntityKind, name string, err error) error {
	if !hasCode(err, amqp.PreconditionFailed) {
		return fmt.Errorf("%s %s: %w", entity, name, err)
	}
	e := &MismatchError{Entity: entity, Name: name, Err: err, Fix: fixReplace(cfg, entity, name)}
	if m := inequivalent.FindStringSubmatch(err.Error()); m != nil {
		e.Property, e.Want, e.Got = m[1], value(m[2]), value(m[3])
		e.Fix = fixProperty(cfg, entity, name, e.Property, e.Got)
	} else if strings.Contains(err.Error(), "x-dead-letter-strategy") {
		e.Fix = "use RabbitMQ 3.10 or later, or classic queues"
	}
	return e
}

// value takes the value out of the broker's words for it.
func value(text string) string {
	if m := quoted.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return strings.Trim(text, `"`)
}

const fixDeclare = "run retry-consumer topology declare"

// fixProperty says what to do about an entity with a wrong property.
func fixProperty(cfg Config, entity EntityKind, name, property, got string) string {
	if property == "x-queue-type" && (got == string(Quorum) || got == string(Classic)) {
		return fmt.Sprintf("set the queue kind to %s, as it was when the service was declared, or %s",
			got, fixReplace(cfg, entity, name))
	}
	return fixReplace(cfg, entity, name)
}

// fixReplace says how to replace an entity and what that costs. Deleting is
// left to a person.
func fixReplace(cfg Config, entity EntityKind, name string) string {
	n := cfg.Names()
	if entity == KindExchange {
		return "delete the exchange by hand and " + fixDeclare + " (until then nothing passes through it)"
	}
	switch name {
	case n.Submit(), n.Parked(), n.Unrouted():
		return "move its messages elsewhere (they exist nowhere else), delete the queue by hand and " + fixDeclare
	default:
		return "delete the queue by hand and " + fixDeclare + " (the scan publishes its wake-ups again)"
	}
}
