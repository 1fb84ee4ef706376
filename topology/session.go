package topology

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// session runs AMQP calls one after the other on a channel of its own, opened
// when needed: the broker closes a channel with every error. Only the goroutine
// of inSession uses it.
type session struct {
	ctx  context.Context
	conn *amqp.Connection
	ch   *amqp.Channel

	mu   sync.Mutex
	step string // what is being done, for the error when the context ends
}

// inSession runs f in a goroutine and returns f's error, or the context's when
// that ends first. Then the goroutine stays until the call that it is in
// returns (the broker answers, or the connection closes), does no further
// step, closes the channel and ends.
func inSession(ctx context.Context, conn *amqp.Connection, what string, f func(*session) error) error {
	s := &session{ctx: ctx, conn: conn, step: "start"}
	done := make(chan error, 1) // buffered: nobody may be left to read
	go func() {
		err := f(s)
		s.drop()
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("%s: no answer from the broker to %q: %w", what, s.step, ctx.Err())
	}
}

// do runs one step, unless the context has ended. After an error the next step
// gets a new channel.
func (s *session) do(step string, call func(*amqp.Channel) error) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	s.step = step
	s.mu.Unlock()
	if s.ch == nil {
		ch, err := s.conn.Channel()
		if err != nil {
			return fmt.Errorf("open a channel: %w", err)
		}
		s.ch = ch
	}
	err := call(s.ch)
	if err != nil {
		s.drop()
	}
	return err
}

// drop closes the channel, if there is one. Its error tells nothing new: the
// channel or the connection was closed already.
func (s *session) drop() {
	if s.ch != nil {
		_ = s.ch.Close()
		s.ch = nil
	}
}

// hasCode says whether the broker refused with an AMQP reply code.
func hasCode(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}
