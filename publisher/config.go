package publisher

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// DefaultRecordTimeout is how long Do tries to record a task that failed.
const DefaultRecordTimeout = 10 * time.Second

// DefaultLease is how long a task of Record is held without renewal.
const DefaultLease = 30 * time.Second

// maxPayloadLimit is the largest MaxPayload: what a bytea value can hold, with
// room to spare.
const maxPayloadLimit = 256 << 20

// Config of a Publisher.
type Config struct {
	// Service that owns the tasks. Required. It must be the Store's.
	Service string
	// Store keeps the tasks. Required. The publisher does not close it; close it
	// after the publisher.
	Store persistence.Store
	// AMQPURL of the broker, amqp:// or amqps://. Required.
	AMQPURL string
	// TLS of an amqps:// connection. nil: the system's certificates.
	TLS *tls.Config
	// Scenes that may be published. Empty: any scene name, with the default
	// rules; an unknown outcome then goes to a person. Scene names are kinds of
	// tasks, a small fixed set: the publisher keeps each one it has seen.
	Scenes []retry.Scene
	// MaxPayload bounds a task's encoded arguments in bytes. Zero:
	// retry.DefaultMaxPayload (1 MiB).
	MaxPayload int
	// RecordTimeout bounds how long Do tries to record a task that failed, and
	// Record a task and its result, even where the caller's context is over by
	// then. With Do, Enqueue and EnqueueMany one half is for Postgres and the other
	// for the submit queue. Zero: DefaultRecordTimeout.
	RecordTimeout time.Duration
	// Lease is how long a task of Record is held without renewal; renewals come
	// every third of it. It is how long such a task stays unnoticed when this
	// process dies. Zero: DefaultLease. At least a second.
	Lease time.Duration
	// Name of this publisher in journals and in the broker's list of connections.
	// Empty: host/pid.
	Name string
	// Logger. nil: slog.Default.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.MaxPayload == 0 {
		c.MaxPayload = retry.DefaultMaxPayload
	}
	if c.RecordTimeout == 0 {
		c.RecordTimeout = DefaultRecordTimeout
	}
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.Name == "" {
		c.Name = defaultName()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// check returns every *retry.FieldError joined, or nil. The AMQP URL is checked by
// what connects with it.
func (c Config) check() error {
	errs := []error{retry.CheckService(c.Service)}
	bad := func(field string, value any, allowed string) {
		errs = append(errs, retry.NewFieldError(field, value, allowed))
	}
	if c.Store == nil {
		bad("store", "nil", "set")
	}
	if own, ok := c.Store.(interface{ Service() string }); ok && own.Service() != c.Service {
		bad("store", own.Service(), "the store of service "+c.Service)
	}
	if c.MaxPayload < 0 || c.MaxPayload > maxPayloadLimit {
		bad("max_payload", c.MaxPayload, fmt.Sprintf("0 (meaning %d) to %d bytes", retry.DefaultMaxPayload, maxPayloadLimit))
	}
	if c.RecordTimeout < 0 {
		bad("record_timeout", c.RecordTimeout, fmt.Sprintf("0 (meaning %v) or more", DefaultRecordTimeout))
	}
	if c.Lease < time.Second {
		bad("lease", c.Lease, fmt.Sprintf("0 (meaning %v), or 1s or more", DefaultLease))
	}
	if len(c.Name) > 255 {
		bad("name", c.Name, "at most 255 bytes")
	}
	seen := make(map[string]bool, len(c.Scenes))
	for _, s := range c.Scenes {
		if err := s.Check(); err != nil {
			errs = append(errs, err)
		}
		if seen[s.Name] {
			bad("scenes", s.Name, "each scene once")
		}
		seen[s.Name] = true
	}
	return errors.Join(errs...)
}
