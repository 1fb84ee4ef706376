// Package amqpconn keeps one connection to RabbitMQ alive.
//
// A Conn owns one goroutine, the supervisor, which dials, waits until the
// connection dies, and dials again with growing, jittered pauses, until Close. Each
// connection it makes is a Session with a generation of its own; channels belong to
// a session and die with it, so that nothing of an older generation is ever used.
//
// Nothing here waits for ever: connecting and its handshake have a deadline, every
// write has one, a silent broker is found by its missing heartbeats, and closing
// falls back to closing the socket. The client library's own recovery is not used:
// it gives up after a while and hands out channels of the past.
package amqpconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// closeWait is how long the broker may take to agree to the end of a
	// connection, if Close's context gives it that long.
	closeWait = 2 * time.Second
	// closeWaitBlocked is the same for a broker in alarm, which does not read.
	closeWaitBlocked = 200 * time.Millisecond
	// endWait is how long the library may take to end its goroutines once the
	// socket is closed.
	endWait = time.Second
	// keepAlive is the interval of TCP's own probes.
	keepAlive = 15 * time.Second
)

// State is a snapshot for logs and metrics.
type State struct {
	Connected    bool
	Since        time.Time // of the connection, or of its loss
	Address      string    // host:port of the connection, or of the last one; empty: there was none yet
	Generation   int       // counts connections; zero: there was none yet
	Reconnects   int       // connections after the first
	Blocked      string    // the broker's reason, while it takes no messages
	BlockedSince time.Time // zero while not blocked
	Failures     int       // dials that failed since the last connection
	LastError    error     // of the last loss or failed dial; passwords masked
	Permanent    bool      // LastError looks like a matter of configuration
}

// Conn is a connection that comes back. Its methods may be called concurrently.
type Conn struct {
	cfg    Config
	log    *slog.Logger
	order  []string           // the addresses as URLs, the next one first; the supervisor's
	cancel context.CancelFunc // ends the supervisor
	hurry  chan struct{}      // closed when Close has no more time
	ended  chan struct{}      // closed when the supervisor is gone

	mu      sync.Mutex
	hurried bool
	closing bool
	session *Session      // nil while not connected
	changed chan struct{} // closed and replaced at each change of session
	state   State
}

// New checks cfg and starts the supervisor. It does not wait for the broker. The
// error is a *retry.FieldError that shows no password.
func New(cfg Config) (*Conn, error) {
	addresses, uri, err := cfg.check()
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults(uri)
	// The processes of a fleet spread over the nodes.
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	ctx, cancel := context.WithCancel(context.Background())
	c := &Conn{
		cfg: cfg, order: addresses, cancel: cancel, hurry: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}),
		log: cfg.Logger.With("connection", cfg.Name), state: State{Since: time.Now()},
	}
	go c.supervise(ctx)
	return c, nil
}

// Session returns the live connection and waits for one if there is none. It
// returns ErrClosed after Close, or ctx's error joined with that of the last dial.
func (c *Conn) Session(ctx context.Context) (*Session, error) {
	for {
		c.mu.Lock()
		s, changed, closing := c.session, c.changed, c.closing
		c.mu.Unlock()
		if closing {
			return nil, ErrClosed
		}
		if s != nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for the broker: %w", ctx.Err()), c.State().LastError)
		case <-changed:
		}
	}
}

// Live returns the live connection, or nil.
func (c *Conn) Live() *Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// State returns a snapshot.
func (c *Conn) State() State {
	c.mu.Lock()
	st, s := c.state, c.session
	c.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		st.Blocked, st.BlockedSince = s.blocked, s.blockedSince
		s.mu.Unlock()
	}
	return st
}

// Close ends the connection and the supervisor. The broker gets a moment to agree,
// and no longer than until ctx is done; then the socket is closed under it, and
// Close returns at the latest a second after. It may be called again. The error
// says that a goroutine of the client library is still at it.
func (c *Conn) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closing = true
	c.notify()
	c.mu.Unlock()
	c.cancel()
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	if !c.hurried {
		c.hurried = true
		close(c.hurry)
	}
	c.mu.Unlock()
	late := time.NewTimer(2 * endWait)
	defer late.Stop()
	select {
	case <-c.ended:
		return nil
	case <-late.C:
		return fmt.Errorf("close amqp connection: %w", ctx.Err())
	}
}

// notify wakes those who wait for a session; c.mu is held.
func (c *Conn) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Conn) up(s *Session) {
	address := s.RemoteAddr().String()
	c.mu.Lock()
	outage, failures := time.Since(c.state.Since), c.state.Failures
	c.session = s
	c.state.Connected, c.state.Since, c.state.Generation, c.state.Failures, c.state.Permanent = true, s.since, s.Generation, 0, false
	c.state.Address, c.state.Reconnects = address, s.Generation-1
	c.notify()
	c.mu.Unlock()
	c.log.Info("connected to the broker", "generation", s.Generation, "address", address, "reconnects", s.Generation-1, "after", outage.Round(time.Millisecond), "failures", failures)
}

func (c *Conn) down(s *Session, err error) {
	err = s.end(err)
	c.mu.Lock()
	c.session = nil
	c.state.Connected, c.state.Since, c.state.LastError = false, time.Now(), err
	c.notify()
	c.mu.Unlock()
	// Last: whoever sees Done and asks for a Session must not get this one again.
	close(s.done)
}

// failed notes a failed dial. It logs the 1st, 2nd, 4th, 8th… in a row, and where
// the kind of failure changes.
func (c *Conn) failed(err *DialError) {
	c.mu.Lock()
	changed := err.Permanent != c.state.Permanent
	c.state.Failures++
	c.state.LastError, c.state.Permanent = err, err.Permanent
	n, since := c.state.Failures, c.state.Since
	c.mu.Unlock()
	level, text := slog.LevelDebug, "cannot connect to the broker, trying again"
	if n&(n-1) == 0 || changed {
		level = slog.LevelWarn
		if err.Permanent {
			level, text = slog.LevelError, "the broker refuses the connection; this looks like a setting to correct; trying again"
		}
	}
	c.log.Log(context.Background(), level, text, "error", err, "failures", n, "down", time.Since(since).Round(time.Millisecond))
}

// supervise is the supervisor.
func (c *Conn) supervise(ctx context.Context) {
	defer close(c.ended)
	bound, failed := c.cfg.MinBackoff, 0 // failed: addresses of this round
	for generation := 1; ctx.Err() == nil; {
		conn, w, err := c.cfg.dial(ctx, c.order[0])
		if ctx.Err() == nil && err != nil {
			c.failed(err)
		}
		if err == nil {
			s := newSession(conn, w, generation)
			generation++
			if c.attend(ctx, s) > c.cfg.MaxBackoff {
				bound = c.cfg.MinBackoff
			}
			// A connection that did not last counts as a failure: a broker that
			// throws us out at once must not be hammered.
		}
		// What failed last is tried last, so that a node that is down costs a dial once.
		c.order = append(c.order[1:len(c.order):len(c.order)], c.order[0])
		if failed++; err != nil && failed < len(c.order) {
			continue
		}
		failed = 0
		pause := time.NewTimer(rand.N(bound) + 1)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
		bound = min(2*bound, c.cfg.MaxBackoff)
	}
}

// attend makes s known, waits until it is gone or ctx is done, and closes it then.
// It returns how long s lived.
func (c *Conn) attend(ctx context.Context, s *Session) time.Duration {
	closed := s.NotifyClose(make(chan *amqp.Error, 1))
	blocked := s.NotifyBlocked(make(chan amqp.Blocking, 8))
	c.up(s)
	for {
		select {
		case err, ok := <-closed:
			var lost error = amqp.ErrClosed
			if ok && err != nil {
				lost = &lostError{err, s.wire.failure()}
			}
			c.down(s, lost)
			c.log.Warn("connection to the broker lost", "generation", s.Generation, "error", s.Err())
			settle(closed)
			return time.Since(s.since)
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			was, changed := s.setBlocked(b)
			switch {
			case !changed:
			case b.Active:
				c.log.Warn("the broker takes no messages", "reason", b.Reason)
			default:
				c.log.Info("the broker takes messages again", "after", was.Round(time.Millisecond))
			}
		case <-ctx.Done():
			c.goodbye(s)
			c.down(s, ErrClosed)
			settle(closed)
			return time.Since(s.since)
		}
	}
}

// settle waits until the library has worked off the end of a connection, so that
// its goroutines are gone with ours.
func settle(closed <-chan *amqp.Error) {
	late := time.NewTimer(endWait)
	defer late.Stop()
	for {
		select {
		case _, ok := <-closed:
			if !ok {
				return
			}
		case <-late.C:
			return
		}
	}
}

// goodbye asks the broker to end the connection, as long as there is time.
func (c *Conn) goodbye(s *Session) {
	wait := closeWait
	if s.Blocked() != "" {
		wait = closeWaitBlocked
	}
	done := make(chan struct{})
	go func() { // ends when the socket is closed, at the latest
		defer close(done)
		_ = s.CloseDeadline(time.Now().Add(wait))
	}()
	// CloseDeadline may wait behind a write before its own deadline counts.
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-done:
	case <-c.hurry:
	case <-late.C:
	}
}
