package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/topology"
)

// ErrClosed is what methods return after Close.
var ErrClosed = errors.New("publisher is closed")

// Publisher hands a service's tasks over. Its methods may be called concurrently.
// Make one per process with New and end it with Close.
type Publisher struct {
	cfg    Config
	scenes *scenes
	wakes  *wakes
	sender *submit.Sender // to the submit queue, on the connection of wakes
	outage outage
	held   *held // the records that run

	// closing is closed when Close begins: it cuts pauses of the local tier short.
	closing chan struct{}
	// done is closed when Close has ended; closeErr is set by then.
	done     chan struct{}
	closeErr error

	// gate orders the start of calls and the start of Close: calls only grows
	// while closing is open.
	gate  sync.RWMutex
	calls sync.WaitGroup
}

// New returns a Publisher. It checks all of cfg at once: the error is every
// *retry.FieldError joined. It does not wait for a server. A goroutine of its own
// connects to the broker and keeps at it; the database's errors come from the
// methods that use it.
func New(cfg Config) (*Publisher, error) {
	cfg = cfg.withDefaults()
	conn, err := newConn(cfg)
	if err = errors.Join(cfg.check(), err); err != nil {
		if conn != nil {
			err = errors.Join(err, conn.Close(context.Background()))
		}
		return nil, fmt.Errorf("publisher: %w", err)
	}
	return &Publisher{
		cfg: cfg, scenes: newScenes(cfg.Scenes), wakes: newWakes(cfg, conn),
		sender:  submit.NewSender(submit.SenderConfig{Conn: conn, Exchange: topology.NamesOf(cfg.Service).Submit()}),
		held:    &held{store: cfg.Store, lease: cfg.Lease, log: cfg.Logger, records: map[*record]struct{}{}},
		closing: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// Close ends the publisher. New calls get ErrClosed. Those that run are waited for
// and Do and Record go to the durable tier at once instead of trying again; then the
// wake-ups are flushed and every goroutine ends. When ctx is over first, Close stops
// waiting and returns an error at most a few seconds later; what was not published is
// left to the scan, so nothing is lost. Close again waits for the same end.
//
// Do not call it from within a call of Do or Record.
func (p *Publisher) Close(ctx context.Context) error {
	if !p.beginClose() {
		select {
		case <-p.done:
			return p.closeErr
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	idle := make(chan struct{})
	go func() { // ends when the last call does
		p.calls.Wait()
		p.held.beats.Wait()
		close(idle)
	}()
	var waitErr error
	select {
	case <-idle:
	case <-ctx.Done():
		waitErr = fmt.Errorf("close publisher: calls still run: %w", ctx.Err())
	}
	p.sender.Close(ctx)
	p.closeErr = errors.Join(waitErr, p.wakes.close(ctx))
	close(p.done)
	return p.closeErr
}

// beginClose is true for the first caller.
func (p *Publisher) beginClose() bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	if p.isClosing() {
		return false
	}
	close(p.closing)
	return true
}

func (p *Publisher) isClosing() bool {
	select {
	case <-p.closing:
		return true
	default:
		return false
	}
}

// enter begins a call; leave ends it.
func (p *Publisher) enter() error {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if p.isClosing() {
		return ErrClosed
	}
	p.calls.Add(1)
	return nil
}

func (p *Publisher) leave() { p.calls.Done() }
