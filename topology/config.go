package topology

import (
	"github.com/spillway-mq/spillway/retry"
)

// Version is the topology's version, a part of every name. A change of
// structural arguments makes a new version, never a redeclaration.
const Version = "v1"

// QueueKind is the type of the queues. The zero value means Quorum.
type QueueKind string

// The kinds of queue.
const (
	// Quorum queues are replicated and dead-letter at least once.
	Quorum QueueKind = "quorum"
	// Classic queues live on one node and dead-letter at most once.
	Classic QueueKind = "classic"
)

// Mode is how delays are made. The zero value means ModeTiers.
type Mode string

// The modes.
const (
	// ModeTiers is the binary tiers: works on every broker.
	ModeTiers Mode = "tiers"
	// ModePlugin is one x-delayed-message exchange. Not in this version.
	ModePlugin Mode = "plugin"
	// ModeAuto is ModePlugin where the broker has it, else ModeTiers. Not in
	// this version.
	ModeAuto Mode = "auto"
)

// Config says which topology a service has.
type Config struct {
	// Service owns the topology. Required; see retry.CheckService.
	Service string
	// Kind is the type of all queues. Default: Quorum. It is structural: to
	// change it, the old queues have to be drained and deleted by hand.
	Kind QueueKind
	// Mode is how delays are made. Default: ModeTiers, the only one so far.
	Mode Mode
}

// WithDefaults returns c with its zero values replaced by the defaults.
func (c Config) WithDefaults() Config {
	if c.Kind == "" {
		c.Kind = Quorum
	}
	if c.Mode == "" {
		c.Mode = ModeTiers
	}
	return c
}

// Validate returns a *retry.FieldError for the first field that is not
// allowed. Zero values of Kind and Mode are allowed.
func (c Config) Validate() error {
	c = c.WithDefaults()
	if err := retry.CheckService(c.Service); err != nil {
		return err
	}
	switch c.Kind {
	case Quorum, Classic:
	default:
		return retry.NewFieldError("queue kind", string(c.Kind), "quorum or classic")
	}
	switch c.Mode {
	case ModeTiers:
	case ModePlugin, ModeAuto:
		return retry.NewFieldError("topology mode", string(c.Mode), "tiers (plugin and auto are not in this version)")
	default:
		return retry.NewFieldError("topology mode", string(c.Mode), "tiers")
	}
	return nil
}

// Names returns the names of c's entities.
func (c Config) Names() Names { return NamesOf(c.Service) }
