package topology

import (
	"slices"
	"strings"
)

// Arguments are the x- arguments of a declaration. Values are string or int64.
type Arguments map[string]any

// Exchange is an exchange as it should be. All are durable, none is internal
// or deleted automatically.
type Exchange struct {
	Name      string    `json:"name"`
	Type      string    `json:"type"` // topic or fanout
	Arguments Arguments `json:"arguments,omitempty"`
	Role      string    `json:"role"` // for people
}

// Queue is a queue as it should be. All are durable, none is exclusive or
// deleted automatically. Its type is the argument x-queue-type.
type Queue struct {
	Name      string    `json:"name"`
	Arguments Arguments `json:"arguments,omitempty"`
	Role      string    `json:"role"` // for people
}

// EntityKind says whether an entity is an exchange, a queue or a binding.
type EntityKind string

// The kinds of entity.
const (
	KindExchange EntityKind = "exchange"
	KindQueue    EntityKind = "queue"
	KindBinding  EntityKind = "binding"
)

// Binding leads messages whose routing key matches Key from the exchange
// Source to Destination, an exchange or a queue.
type Binding struct {
	Source          string     `json:"source"`
	DestinationKind EntityKind `json:"destination_kind"`
	Destination     string     `json:"destination"`
	Key             string     `json:"key"`
}

// String is "SOURCE -[KEY]-> KIND DESTINATION".
func (b Binding) String() string {
	return b.Source + " -[" + b.Key + "]-> " + string(b.DestinationKind) + " " + b.Destination
}

// Plan is all that a service should have on the broker, as data. The slices
// are in an order that is the same for the same Config.
type Plan struct {
	Version   string     `json:"version"`
	Service   string     `json:"service"`
	Kind      QueueKind  `json:"kind"`
	Mode      Mode       `json:"mode"`
	Exchanges []Exchange `json:"exchanges"`
	Queues    []Queue    `json:"queues"`
	Bindings  []Binding  `json:"bindings"`
}

// NewPlan returns the plan of a service's topology, or a *retry.FieldError.
// It is pure: the same Config gives the same Plan.
func NewPlan(cfg Config) (Plan, error) {
	if err := cfg.Validate(); err != nil {
		return Plan{}, err
	}
	cfg = cfg.WithDefaults()
	p := Plan{Version: Version, Service: cfg.Service, Kind: cfg.Kind, Mode: cfg.Mode}
	p.addEnds(cfg)
	p.addTiers(cfg) // the place for other modes: they replace this part only
	return p, nil
}

// addEnds adds what is the same in every mode: where delays end, and what
// happens to messages that are not simply wake-ups.
func (p *Plan) addEnds(cfg Config) {
	n := cfg.Names()
	alternate := Arguments{"alternate-exchange": n.Unrouted()}
	p.Exchanges = append(p.Exchanges,
		Exchange{n.Unrouted(), "fanout", nil, "messages that found no way"},
		Exchange{n.Dead(), "fanout", alternate, "dead letters of ready and submit"},
		Exchange{n.Submit(), "fanout", nil, "whole tasks from any AMQP client"},
		Exchange{n.Due(), "topic", alternate, "where a delay ends"},
	)
	p.Queues = append(p.Queues,
		Queue{n.Unrouted(), cfg.forPeople(), "must stay empty: an alarm if not"},
		Queue{n.Parked(), cfg.forPeople(), "cannot be handled as a message: for a person"},
		Queue{n.Submit(), cfg.deadLetterTo(n.Dead(), nil), "whole tasks to be inserted"},
		Queue{n.Ready(), cfg.deadLetterTo(n.Dead(), nil), "due wake-ups: consumers read here"},
	)
	p.Bindings = append(p.Bindings,
		Binding{n.Unrouted(), KindQueue, n.Unrouted(), ""},
		Binding{n.Dead(), KindQueue, n.Parked(), ""},
		Binding{n.Submit(), KindQueue, n.Submit(), ""},
		// Whatever comes before it, the last word is the service.
		Binding{n.Due(), KindQueue, n.Ready(), "#." + cfg.Service},
	)
}

// addTiers adds the delayed exchange and the levels.
func (p *Plan) addTiers(cfg Config) {
	n := cfg.Names()
	p.Exchanges = append(p.Exchanges, Exchange{n.Delay(), "topic", nil, "the delayed exchange: publish here, mandatory"})
	for level := range Levels {
		name := n.Level(level)
		p.Exchanges = append(p.Exchanges, Exchange{name, "topic",
			Arguments{"alternate-exchange": n.Unrouted()}, "after level " + name[len(n.Delay())+1:]})
		p.Queues = append(p.Queues, Queue{name,
			cfg.deadLetterTo(name, Arguments{"x-message-ttl": LevelTTL(level).Milliseconds()}),
			"waits " + ttlText(LevelTTL(level))})
	}
	// Levels first, from the shortest: a message that enters finds its whole
	// way bound already.
	for level := range Levels {
		p.addStep(cfg, n.Level(level), level)
	}
	p.addStep(cfg, n.Delay(), Levels)
}

// addStep adds the bindings of the exchange that messages reach after waiting
// in level (Levels: at the entry): one for each lower level that could be the
// next, and one for no level left.
func (p *Plan) addStep(cfg Config, exchange string, level int) {
	n := cfg.Names()
	p.Bindings = append(p.Bindings,
		Binding{exchange, KindExchange, n.Due(), stepPattern(cfg.Service, level, -1)})
	for next := range level {
		p.Bindings = append(p.Bindings,
			Binding{exchange, KindQueue, n.Level(next), stepPattern(cfg.Service, level, next)})
	}
}

// stepPattern matches the keys that have bit level set (Levels: the entry, no
// such bit), bit next set (below 0: none), and no bit in between. All patterns
// have all 15 words, so that a malformed key matches nowhere.
func stepPattern(service string, level, next int) string {
	words := make([]string, 0, Levels+1)
	for bit := Levels - 1; bit >= 0; bit-- {
		switch {
		case bit == level, bit == next:
			words = append(words, "1")
		case bit < level && bit > next:
			words = append(words, "0")
		default:
			words = append(words, "*")
		}
	}
	return strings.Join(append(words, service), ".")
}

// arguments returns extra with the queue's type.
func (c Config) arguments(extra Arguments) Arguments {
	args := Arguments{"x-queue-type": string(c.Kind)}
	for k, v := range extra {
		args[k] = v
	}
	return args
}

// manyLooks is the delivery limit of queues that people look into: never reached. It has to be a number: without one RabbitMQ
// 4.0 takes 20, and -1 means none there, but on 3.x that the first look is the last.
const manyLooks int64 = 1_000_000_000

// forPeople returns the arguments of a queue whose messages wait for a person.
// Each look puts the messages back, which a quorum queue counts, and it has no
// dead-letter exchange: over the limit they would be gone. Classic queues do not
// count.
func (c Config) forPeople() Arguments {
	if c.Kind == Classic {
		return c.arguments(nil)
	}
	return c.arguments(Arguments{"x-delivery-limit": manyLooks})
}

// deadLetterTo returns the arguments of a queue that dead-letters to exchange.
// Classic queues know no strategy; for quorum queues at-least-once requires
// reject-publish.
func (c Config) deadLetterTo(exchange string, extra Arguments) Arguments {
	args := c.arguments(extra)
	args["x-dead-letter-exchange"] = exchange
	if c.Kind == Quorum {
		args["x-dead-letter-strategy"] = "at-least-once"
		args["x-overflow"] = "reject-publish"
	}
	return args
}

// sortedKeys are the names of the arguments in order.
func (a Arguments) sortedKeys() []string {
	keys := make([]string, 0, len(a))
	for k := range a {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
