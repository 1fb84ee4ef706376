package amqpconn

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/retry"
)

// Defaults of a Config.
const (
	DefaultHeartbeat    = 10 * time.Second
	DefaultDialTimeout  = 10 * time.Second
	DefaultWriteTimeout = 10 * time.Second
	DefaultMinBackoff   = 500 * time.Millisecond
	DefaultMaxBackoff   = 5 * time.Second
)

// Config of a Conn.
type Config struct {
	// URL of the broker, amqp:// or amqps://; see ParseURL for several addresses, among
	// which each Conn has an order of its own. Required. A heartbeat or
	// connection_timeout in it goes before the ones below; cacertfile, certfile,
	// keyfile and server_name_indication are for amqps.
	URL string
	// Name is shown in the broker's list of connections. Empty: spillway host/pid.
	Name string
	// TLS of amqps URLs. nil: what the URL's files say, and else the system's roots.
	TLS *tls.Config
	// Heartbeat finds silent brokers, in whole seconds from 1 s: one and a half of
	// it without a byte ends the connection. A broker may ask for less. Zero:
	// DefaultHeartbeat.
	Heartbeat time.Duration
	// DialTimeout bounds connecting, TLS and AMQP handshake together, for each address.
	// Zero: DefaultDialTimeout.
	DialTimeout time.Duration
	// WriteTimeout bounds one write to the socket; a write that takes longer ends
	// the connection. The client library has no bound of its own, so that a broker
	// that does not read would hold a caller for ever. Zero: DefaultWriteTimeout.
	WriteTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause before a new round of dials, one for
	// each address. The bound doubles from one to the other, and the pause is a random
	// part of it, so that the processes of a fleet do not come back at the same moment.
	// Zero: DefaultMinBackoff and DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
	// Logger. nil: slog.Default.
	Logger *slog.Logger
}

func (c Config) withDefaults(uri amqp.URI) Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if uri.ConnectionTimeout > 0 {
		c.DialTimeout = time.Duration(uri.ConnectionTimeout) * time.Millisecond
	}
	def(&c.Heartbeat, DefaultHeartbeat)
	def(&c.DialTimeout, DefaultDialTimeout)
	def(&c.WriteTimeout, DefaultWriteTimeout)
	def(&c.MinBackoff, DefaultMinBackoff)
	def(&c.MaxBackoff, max(DefaultMaxBackoff, c.MinBackoff))
	if c.Name == "" {
		c.Name = "spillway " + Process()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Check returns what New would say of a URL and of Config.TLS.
func Check(url string, secure *tls.Config) error {
	_, _, err := Config{URL: url, TLS: secure}.check()
	return err
}

// check returns the addresses and what they share, or a *retry.FieldError that shows
// no password.
func (c Config) check() ([]string, amqp.URI, error) {
	addresses, err := ParseURL(c.URL)
	if err != nil {
		return nil, amqp.URI{}, err
	}
	uri, err := amqp.ParseURI(addresses[0])
	if err == nil {
		_, err = tlsConfig(uri, c.TLS)
	}
	if err != nil {
		return nil, uri, err
	}
	for _, d := range []struct {
		field string
		value time.Duration
		least time.Duration
	}{
		{"amqp heartbeat", c.Heartbeat, time.Second}, {"amqp dial timeout", c.DialTimeout, 1}, {"amqp write timeout", c.WriteTimeout, 1},
		{"amqp min backoff", c.MinBackoff, 1}, {"amqp max backoff", c.MaxBackoff, max(c.MinBackoff, 1)},
	} {
		if d.value != 0 && d.value < d.least {
			return nil, uri, retry.NewFieldError(d.field, d.value, fmt.Sprintf("0 (the default) or at least %v", d.least))
		}
	}
	return addresses, uri, nil
}

// Process names this process for people: host/pid.
func Process() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
