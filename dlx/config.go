package dlx

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// Config of a Box.
type Config struct {
	// Service whose queues these are. Required.
	Service string
	// Dial makes a connection. Required. Each operation makes its own and closes them: one to read, and one to publish where it
	// does, because a broker in alarm does not read from those who publish.
	Dial func(context.Context) (*amqp.Connection, error)
}

// Box is a service's parked and unrouted messages. Its methods may be called concurrently, but walks of one queue at the same
// time hide messages from one another.
type Box struct {
	names topology.Names
	dial  func(context.Context) (*amqp.Connection, error)
}

// New returns a Box, or a *retry.FieldError. It does not connect.
func New(cfg Config) (*Box, error) {
	if err := (topology.Config{Service: cfg.Service}).Validate(); err != nil {
		return nil, err
	}
	if cfg.Dial == nil {
		return nil, retry.NewFieldError("dial", "nil", "a function that connects")
	}
	return &Box{topology.NamesOf(cfg.Service), cfg.Dial}, nil
}

// Place is one of the queues of a Box.
type Place string

// The places.
const (
	Parked   Place = "parked"
	Unrouted Place = "unrouted"
)

// Places are all places.
func Places() []Place { return []Place{Parked, Unrouted} }

func (b *Box) queue(p Place) (string, error) {
	switch p {
	case Parked:
		return b.names.Parked(), nil
	case Unrouted:
		return b.names.Unrouted(), nil
	}
	return "", retry.NewFieldError("place", string(p), "parked or unrouted")
}

// goodbyeTime bounds the closing of a connection.
const goodbyeTime = 2 * time.Second

// withChannel runs f with a channel of a connection of its own, which is closed after f, and under f when ctx ends: the
// library's calls take no context.
func (b *Box) withChannel(ctx context.Context, f func(*amqp.Connection, *amqp.Channel) error) error {
	conn, err := b.dial(ctx)
	if err != nil {
		return err
	}
	goodbye := func() { _ = conn.CloseDeadline(time.Now().Add(goodbyeTime)) }
	defer goodbye()
	closing := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closing)
		goodbye()
	})
	defer func() {
		if !stop() {
			<-closing // no goroutine of ours is left
		}
	}()
	ch, err := conn.Channel()
	if err == nil {
		err = f(conn, ch)
	} else {
		err = fmt.Errorf("open a channel: %w", err)
	}
	if ctx.Err() != nil && err != nil && !errors.Is(err, context.Cause(ctx)) {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}
