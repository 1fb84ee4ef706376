package consumer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/reaper"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// Defaults of a Config.
const (
	DefaultConcurrency = 64
	DefaultLease       = 30 * time.Second
	DefaultGrace       = 20 * time.Second
)

// Config of a Consumer.
type Config struct {
	// Service whose tasks are run. Required.
	Service string
	// Store of that service. The caller closes it, after Run. Required.
	Store persistence.Store
	// AMQPURL of the broker. Required.
	AMQPURL string
	// TLS of amqps URLs. nil: the system's roots.
	TLS *tls.Config
	// Kind of the service's queues. Zero: quorum.
	Kind topology.QueueKind
	// Declare makes the topology at the start and after each reconnect; the process
	// with the elected reaper also makes it again every minute, and at once when a
	// wake-up finds no way. Without it a missing queue is waited for.
	Declare bool
	// Concurrency bounds how many handlers run at once. Zero: DefaultConcurrency.
	Concurrency int
	// MaxPayload bounds the arguments of a task from the submit queue in bytes; more is
	// parked. At least that of the publishers. Zero: retry.DefaultMaxPayload (1 MiB).
	MaxPayload int
	// Lease is how long a claim holds without renewal; renewals come every third of
	// it. Zero: DefaultLease. At least a second.
	Lease time.Duration
	// Grace is how long handlers may go on once Run's context is done. Zero:
	// DefaultGrace; below zero: none.
	Grace time.Duration
	// StartTimeout bounds the wait for Postgres and RabbitMQ at the start. Zero: for
	// ever.
	StartTimeout time.Duration
	// Name of this process, shown on claims and connections. Empty: host/pid and a
	// random part. Must be unique.
	Name string
	// NoReaper leaves the scans to other processes.
	NoReaper bool
	// ScanInterval, Retention and OnScan are the reaper's. Zero: its defaults.
	ScanInterval time.Duration
	Retention    time.Duration
	OnScan       func(reaper.Scan)
	// OnEvent is told what happens to tasks, for metrics and tests. nil: nobody is. It is
	// called from many goroutines and must not block.
	OnEvent func(Event)
	// Logger. nil: slog.Default.
	Logger *slog.Logger
}

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	EventSubscribed EventKind = "subscribed" // the consumer reads the ready queue
	EventStarted    EventKind = "started"    // a handler begins
	EventFinished   EventKind = "finished"   // a result was written
	EventLostClaim  EventKind = "lost_claim" // a result came too late
	EventParked     EventKind = "parked"     // a message that is not ours was dead-lettered
	EventSubmitted  EventKind = "submitted"  // a task from the submit queue was stored, or was there
	EventUnknown    EventKind = "unknown"    // a task of a scene that this build does not know
	EventReleased   EventKind = "released"   // a claim was handed back
	EventHealed     EventKind = "healed"     // queues that the broker had lost were made anew, see topology.Heal
)

// Event is one thing that happened.
type Event struct {
	Kind    EventKind
	Task    int64
	Scene   string
	Attempt int
	Late    time.Duration // started: after the task was due
	Status  retry.Status  // finished, submitted
	Reason  retry.Reason  // finished
}

func (c Config) withDefaults() Config {
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.MaxPayload == 0 {
		c.MaxPayload = retry.DefaultMaxPayload
	}
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Name = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), strings.SplitN(uuid.NewString(), "-", 2)[0])
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.OnEvent == nil {
		c.OnEvent = func(Event) {}
	}
	return c
}

// check returns every *retry.FieldError joined.
func (c Config) check() error {
	errs := []error{topology.Config{Service: c.Service, Kind: c.Kind}.Validate()}
	bad := func(field string, value any, allowed string) {
		errs = append(errs, retry.NewFieldError(field, value, allowed))
	}
	if c.Store == nil {
		bad("store", "nil", "a persistence.Store")
	} else if own, ok := c.Store.(interface{ Service() string }); ok && own.Service() != c.Service {
		bad("store", own.Service(), "the store of service "+c.Service)
	}
	if err := amqpconn.Check(c.AMQPURL, c.TLS); err != nil {
		errs = append(errs, err)
	}
	if c.ScanInterval < 0 {
		bad("scan interval", c.ScanInterval, "0 (the default) or more")
	}
	if c.Concurrency < 1 || c.Concurrency > 10_000 {
		bad("concurrency", c.Concurrency, "1 to 10000")
	}
	if c.MaxPayload < 0 {
		bad("max payload", c.MaxPayload, fmt.Sprintf("0 (meaning %d) or more bytes", retry.DefaultMaxPayload))
	}
	if c.Lease < time.Second {
		bad("lease", c.Lease, "1s or more")
	}
	if c.StartTimeout < 0 {
		bad("start timeout", c.StartTimeout, "0 (for ever) or more")
	}
	if len(c.Name) > 255 {
		bad("consumer name", c.Name, "at most 255 bytes")
	}
	return errors.Join(errs...)
}
