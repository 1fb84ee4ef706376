package amqpconn

import (
	"context"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Session is one connection. It may be used concurrently; its channels have
// owners of their own.
//
// The methods of the client library's Connection that wait for an answer have no
// bound: under an alarm, the broker does not read what a publisher sends. Use
// OpenChannel, and calls that are given a context.
type Session struct {
	*amqp.Connection
	// Generation counts the connections of a Conn, from 1.
	Generation int

	wire  *wire
	since time.Time
	done  chan struct{} // closed by the supervisor

	mu           sync.Mutex
	err          error         // set before done is closed
	killed       error         // why Kill was called
	blocked      string        // the broker's reason; empty while not blocked
	blockedSince time.Time     // zero while not blocked
	flow         chan struct{} // closed while not blocked; replaced with each alarm
}

func newSession(conn *amqp.Connection, w *wire, generation int) *Session {
	s := &Session{
		Connection: conn, Generation: generation, wire: w, since: time.Now(),
		done: make(chan struct{}), flow: make(chan struct{}),
	}
	close(s.flow)
	return s
}

// Done is closed when the connection is gone.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the connection is gone. It is nil before Done, ErrClosed after
// Conn.Close, and otherwise can be an *amqp.Error to errors.As.
func (s *Session) Err() error {
	select {
	case <-s.done:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.err
	default:
		return nil
	}
}

// Blocked returns the broker's reason for taking no messages (an alarm), or "".
func (s *Session) Blocked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked
}

// Unblocked returns a channel that is closed once the broker takes messages: at
// once, unless it is blocked now. It is not closed by the connection's end.
func (s *Session) Unblocked() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flow
}

// Kill closes the socket without the broker's agreement, for a caller that is sure
// that nothing more comes of this connection. The supervisor makes a new one. Of
// several reasons the first counts.
func (s *Session) Kill(reason error) {
	s.mu.Lock()
	if s.killed == nil {
		s.killed = reason
	}
	s.mu.Unlock()
	_ = s.wire.Close()
}

// OpenChannel opens a channel and lets setup prepare it (Confirm, Qos, Consume).
// setup may be nil. The error is setup's, the library's, the session's end, or ctx's.
//
// The library's calls take no context. When ctx ends first, the goroutine that is
// in such a call stays until the broker answers or the session ends, and then
// closes the channel. So do not open one channel after the other with short
// contexts: wait for Unblocked first.
func (s *Session) OpenChannel(ctx context.Context, setup func(*amqp.Channel) error) (*amqp.Channel, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	type opened struct {
		ch  *amqp.Channel
		err error
	}
	result := make(chan opened) // not buffered: either it is taken, or the goroutine cleans up
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		ch, err := s.Channel()
		if err == nil && setup != nil {
			if err = setup(ch); err != nil {
				_ = ch.Close()
				ch = nil
			}
		}
		select {
		case result <- opened{ch, err}:
		case <-gone:
			if ch != nil {
				_ = ch.Close()
			}
		}
	}()
	select {
	case o := <-result:
		if o.err != nil {
			return nil, fmt.Errorf("open a channel: %w", o.err)
		}
		return o.ch, nil
	case <-s.done:
		return nil, fmt.Errorf("open a channel: %w", s.Err())
	case <-ctx.Done():
		return nil, fmt.Errorf("open a channel: no answer from the broker: %w", ctx.Err())
	}
}

// setBlocked returns how long the broker was blocked, where that ended, and
// whether anything changed.
func (s *Session) setBlocked(b amqp.Blocking) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Active == (s.blocked != "") {
		return 0, false
	}
	if b.Active {
		if s.blocked = b.Reason; s.blocked == "" {
			s.blocked = "no reason given"
		}
		s.blockedSince = time.Now()
		s.flow = make(chan struct{})
		return 0, true
	}
	was := time.Since(s.blockedSince)
	s.blocked, s.blockedSince = "", time.Time{}
	close(s.flow)
	return was, true
}

// end is the supervisor's, who closes done after it: nothing more comes of this session.
// It returns why.
func (s *Session) end(err error) error {
	// Frees whoever is in a write, and with it the library's own shutdown.
	_ = s.wire.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; s.killed != nil {
		s.err = s.killed
	}
	return s.err
}
