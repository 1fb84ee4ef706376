package topology

import (
	"fmt"
	"time"
)

// Names names the entities of one service. Where an exchange and a queue
// belong together, they have the same name.
type Names struct {
	service string
}

// NamesOf returns the names of a service's entities. It does not check the
// service's name; Config.Validate does.
func NamesOf(service string) Names { return Names{service: service} }

// Service is the service itself.
func (n Names) Service() string { return n.service }

// Delay is the delayed exchange, to which wake-ups are published, with a key
// from Key and the mandatory flag.
func (n Names) Delay() string { return n.name("delay") }

// Level is the queue of level 0 to Levels-1 and the exchange that its expired
// messages go to, such as spillway.v1.orders.delay.04-1.6s.
func (n Names) Level(level int) string {
	return n.name("delay." + fmt.Sprintf("%02d-%s", level, ttlText(LevelTTL(level))))
}

// Due is the exchange at which a delay ends.
func (n Names) Due() string { return n.name("due") }

// Ready is the queue of due wake-ups, which consumers read.
func (n Names) Ready() string { return n.name("ready") }

// Submit is the exchange and the queue of whole tasks. Any routing key will do.
func (n Names) Submit() string { return n.name("submit") }

// Dead is the exchange that leads to Parked. Any routing key will do.
func (n Names) Dead() string { return n.name("dead") }

// Parked is the queue of messages that cannot be handled as messages.
func (n Names) Parked() string { return n.name("parked") }

// Unrouted is the exchange and the queue of messages that found no way. It
// must stay empty.
func (n Names) Unrouted() string { return n.name("unrouted") }

func (n Names) name(entity string) string {
	return "spillway." + Version + "." + n.service + "." + entity
}

// ttlText is 100ms, 1.6s, 819.2s: one unit below and one above a second, so
// that the names of the levels sort and compare at a glance.
func ttlText(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}
