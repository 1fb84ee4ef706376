// Package amqpconn keeps one connection to RabbitMQ alive.
//
// A Conn owns one goroutine, the supervisor, which dials, waits until the
// connection dies, and dials again with growing, jittered pauses, until Close. Each
// connection it makes is a Session with a generation of its own; channels belong to
// a session and die with it, so that nothing of an older generation is ever used.
package amqpconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/mask"
	"github.com/spillway-mq/spillway/retry"
)

// Config of a Conn.
type Config struct {
	// URL of the broker. Required.
	URL string
	// Name is shown in the management UI.
	Name string
	// TLS of amqps URLs. nil: the system's roots.
	TLS *tls.Config
	// Heartbeat finds silent brokers: two missed ones end the connection. Zero: 10 s.
	Heartbeat time.Duration
	// DialTimeout bounds connecting and the handshake together. Zero: 10 s.
	DialTimeout time.Duration
	// WriteTimeout bounds one write. The client library has no bound of its own, so
	// that a broker in alarm would block a caller for ever. Zero: 10 s.
	WriteTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause before a new dial; it doubles in
	// between, and a random half of it is taken off. Zero: 100 ms and 15 s.
	MinBackoff, MaxBackoff time.Duration
	// Logger. nil: slog.Default.
	Logger *slog.Logger
}

// ErrClosed says that Close was called.
var ErrClosed = errors.New("amqp connection closed")

// Session is one connection. It may be used concurrently; its channels have
// owners of their own.
type Session struct {
	*amqp.Connection
	Generation int

	done chan struct{}
	err  error // set before done is closed

	mu      sync.Mutex
	blocked string // reason; empty while not blocked
	flow    chan struct{}
}

// Done is closed when the connection is gone.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the connection is gone, after Done.
func (s *Session) Err() error {
	select {
	case <-s.done:
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

// Unblocked returns a channel that is closed once the broker takes messages.
func (s *Session) Unblocked() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flow
}

func (s *Session) setBlocked(b amqp.Blocking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Active == (s.blocked != "") {
		return
	}
	if b.Active {
		if s.blocked = b.Reason; s.blocked == "" {
			s.blocked = "no reason given"
		}
		s.flow = make(chan struct{})
		return
	}
	s.blocked = ""
	close(s.flow)
}

// State is a snapshot for logs and metrics.
type State struct {
	Connected  bool
	Since      time.Time // of the connection, or of its loss
	Generation int       // counts connections
	Blocked    string    // the broker's reason, while it takes no messages
	LastError  error     // of the last loss or failed dial; passwords masked
}

// Conn is a connection that comes back. Its methods may be called concurrently.
type Conn struct {
	cfg    Config
	log    *slog.Logger
	cancel context.CancelFunc // ends the supervisor
	ended  chan struct{}      // closed when the supervisor is gone

	mu      sync.Mutex
	session *Session      // nil while not connected
	changed chan struct{} // closed and replaced at each change of session
	state   State
}

// New checks cfg and starts the supervisor. It does not wait for the broker. The error is
// a *retry.FieldError that shows no password.
func New(cfg Config) (*Conn, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.Heartbeat, 10*time.Second)
	def(&cfg.DialTimeout, 10*time.Second)
	def(&cfg.WriteTimeout, 10*time.Second)
	def(&cfg.MinBackoff, 100*time.Millisecond)
	def(&cfg.MaxBackoff, 15*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if _, err := amqp.ParseURI(cfg.URL); err != nil {
		return nil, &retry.FieldError{Field: "amqp url", Value: fmt.Sprintf("%q", mask.URL(cfg.URL)), Allowed: "like amqp://user:password@host:5672/vhost"}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Conn{cfg: cfg, cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{}), log: cfg.Logger.With("connection", cfg.Name)}
	c.state.Since = time.Now()
	go c.supervise(ctx)
	return c, nil
}

// Session returns the live connection and waits for one if there is none. It
// returns ErrClosed after Close, or ctx's error joined with that of the last dial.
func (c *Conn) Session(ctx context.Context) (*Session, error) {
	for {
		c.mu.Lock()
		s, changed, last := c.session, c.changed, c.state.LastError
		c.mu.Unlock()
		if s != nil {
			return s, nil
		}
		select {
		case <-c.ended:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for the broker: %w", ctx.Err()), last)
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
	defer c.mu.Unlock()
	st := c.state
	if c.session != nil {
		st.Blocked = c.session.Blocked()
	}
	return st
}

// Close ends the connection and the supervisor. Where the broker does not answer
// until ctx is done, the socket is closed under it. It may be called again.
func (c *Conn) Close(ctx context.Context) error {
	c.cancel()
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close amqp connection: %w", ctx.Err())
	}
}

func (c *Conn) set(s *Session, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (s != nil) != (c.session != nil) {
		c.state.Since = time.Now()
	}
	c.session, c.state.Connected = s, s != nil
	if s != nil {
		c.state.Generation = s.Generation
	}
	if err != nil {
		c.state.LastError = err
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Conn) supervise(ctx context.Context) {
	defer close(c.ended)
	pause := c.cfg.MinBackoff
	failures, quiet := 0, 1
	for generation := 1; ctx.Err() == nil; {
		s, socket, err := c.dial(ctx, generation)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			c.set(nil, err)
			// Said at the 1st, 2nd, 4th, 8th… failure.
			if failures++; failures == quiet {
				c.log.Warn("cannot connect to the broker, trying again", "error", err, "failures", failures)
				quiet *= 2
			}
			half := pause / 2
			select {
			case <-ctx.Done():
				return
			case <-time.After(half + rand.N(half+1)):
			}
			pause = min(2*pause, c.cfg.MaxBackoff)
			continue
		}
		generation++
		c.log.Info("connected to the broker", "generation", s.Generation, "failures", failures)
		failures, quiet = 0, 1
		up := time.Now()
		c.set(s, nil)
		c.attend(ctx, s, socket)
		c.set(nil, s.err)
		if ctx.Err() != nil {
			return
		}
		c.log.Warn("connection to the broker lost", "generation", s.Generation, "error", s.err)
		// A connection that did not last counts as a failure: a broker that
		// throws us out at once must not be hammered.
		if time.Since(up) > c.cfg.MaxBackoff {
			pause = c.cfg.MinBackoff
		}
		half := pause / 2
		select {
		case <-ctx.Done():
			return
		case <-time.After(half + rand.N(half+1)):
		}
		pause = min(2*pause, c.cfg.MaxBackoff)
	}
}

// attend waits until s is gone or ctx is done, and closes it then.
func (c *Conn) attend(ctx context.Context, s *Session, socket *socketConn) {
	closed := s.NotifyClose(make(chan *amqp.Error, 1))
	blocked := s.NotifyBlocked(make(chan amqp.Blocking, 8))
	defer close(s.done)
	for {
		select {
		case err, ok := <-closed:
			if s.err = amqp.ErrClosed; ok && err != nil {
				s.err = err
			}
			return
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			if b.Active {
				c.log.Warn("the broker takes no messages", "reason", b.Reason)
			} else {
				c.log.Info("the broker takes messages again")
			}
			s.setBlocked(b)
		case <-ctx.Done():
			s.err = ErrClosed
			// The handshake of closing waits behind an alarm or a dead peer.
			_ = s.CloseDeadline(time.Now().Add(2 * time.Second))
			socket.Close()
			return
		}
	}
}

func (c *Conn) dial(ctx context.Context, generation int) (*Session, *socketConn, error) {
	var socket *socketConn
	dialer := net.Dialer{Timeout: c.cfg.DialTimeout, KeepAlive: 15 * time.Second}
	stop := func() bool { return true }
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName(c.cfg.Name)
	conn, err := amqp.DialConfig(c.cfg.URL, amqp.Config{
		Heartbeat: c.cfg.Heartbeat, TLSClientConfig: c.cfg.TLS, Properties: props,
		Dial: func(network, addr string) (net.Conn, error) {
			nc, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			socket = &socketConn{Conn: nc, timeout: c.cfg.WriteTimeout}
			// The handshake has a deadline; the library clears it afterwards by
			// its own heartbeat deadlines.
			_ = nc.SetDeadline(time.Now().Add(c.cfg.DialTimeout))
			stop = context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Now()) })
			return socket, nil
		},
	})
	stop()
	if err != nil {
		if socket != nil {
			socket.Close()
		}
		return nil, nil, explain(err, c.cfg.URL)
	}
	s := &Session{Connection: conn, Generation: generation, done: make(chan struct{}), flow: make(chan struct{})}
	close(s.flow)
	return s, socket, nil
}

// explain adds what a person should look at. It shows no password.
func explain(err error, url string) error {
	hint := ""
	var ae *amqp.Error
	if errors.As(err, &ae) {
		switch ae.Code {
		case amqp.AccessRefused:
			hint = ": user or password is wrong"
		case amqp.NotAllowed:
			hint = ": the vhost is missing or not allowed"
		}
	}
	return fmt.Errorf("connect to %s: %w%s", mask.URL(url), err, hint)
}

// socketConn gives every write a deadline.
type socketConn struct {
	net.Conn
	timeout time.Duration
}

func (s *socketConn) Write(p []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(s.timeout)); err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}
