package submit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
)

// Reasons for failing. After ErrUnconfirmed the message may be in its queue nevertheless.
var (
	ErrClosed      = errors.New("sender closed")
	ErrUnavailable = errors.New("broker is not available")
	ErrUnroutable  = errors.New("no queue took the message")
	ErrNacked      = errors.New("the broker refused the message")
	ErrUnconfirmed = errors.New("the message was not confirmed")
)

const (
	// patience is how long Send waits for a connection that is away or takes no messages.
	patience = 2 * time.Second
	// openWait bounds the opening of a channel.
	openWait = 5 * time.Second
	// closeWait is how long the broker may take to agree to the end of a channel.
	closeWait = 500 * time.Millisecond
	// maxBatch and maxBytes bound what is published before its confirms are waited for.
	maxBatch = 256
	maxBytes = 8 << 20
)

// SenderConfig of a Sender.
type SenderConfig struct {
	// Conn to publish on; the caller closes it, after the Sender. Required.
	Conn *amqpconn.Conn
	// Exchange to publish to, with an empty routing key. Required.
	Exchange string
}

// Sender publishes messages that must not be lost: persistent, mandatory, and done only once
// the broker confirms them. Its methods may be called concurrently.
//
// One goroutine, started by the first Send and ended by Close, owns the channel and publishes
// what is queued as one batch, for whose confirms it waits before the next: batches grow only
// from what queued up meanwhile. Callers wait for no longer than their contexts, whatever the
// broker does to that goroutine.
type Sender struct {
	cfg    SenderConfig
	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	wake   chan struct{} // cap 1: queue changed
	wg     sync.WaitGroup

	mu      sync.Mutex
	queue   []*item
	started bool
	closing bool
	session *amqpconn.Session // that the goroutine writes to
}

// item is a message of a call of Send.
type item struct {
	amqp.Publishing
	ctx  context.Context // of the call
	done chan error      // cap 1
}

// NewSender returns a Sender. It starts nothing.
func NewSender(cfg SenderConfig) *Sender {
	s := &Sender{cfg: cfg, wake: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Send publishes messages and returns one error for each, in the order given; nil where it is
// confirmed by a queue. It returns when all are settled, or ctx is done; what is not settled
// then is ErrUnconfirmed.
func (s *Sender) Send(ctx context.Context, list ...amqp.Publishing) []error {
	errs := make([]error, len(list))
	if err := s.await(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	items := make([]*item, len(list))
	for i, p := range list {
		items[i] = &item{Publishing: p, ctx: ctx, done: make(chan error, 1)}
	}
	s.add(items)
	for i, it := range items {
		select {
		case errs[i] = <-it.done:
		case <-ctx.Done():
			select {
			case errs[i] = <-it.done:
			default:
				errs[i] = fmt.Errorf("%w: %w", ErrUnconfirmed, ctx.Err())
			}
		}
	}
	return errs
}

// await waits until there is a connection that takes messages.
func (s *Sender) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		session, err := s.cfg.Conn.Session(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if session.Blocked() == "" {
			return nil
		}
		select {
		case <-session.Unblocked():
		case <-session.Done():
		case <-s.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("%w: it takes no messages: %s", ErrUnavailable, session.Blocked())
		}
	}
}

func (s *Sender) add(items []*item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		settle(ErrClosed, items...)
		return
	}
	if !s.started {
		s.started = true
		s.wg.Go(s.run)
	}
	s.queue = append(s.queue, items...)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func settle(err error, items ...*item) {
	for _, it := range items {
		it.done <- err
	}
}

// Close ends the goroutine. What is queued or unconfirmed fails; callers who want to see it
// through wait for their calls first. A write that hangs when ctx is done, or a moment later,
// gets its connection killed.
func (s *Sender) Close(ctx context.Context) {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); s.wg.Wait() }() // ends with run
	grace := time.NewTimer(2 * closeWait)
	defer grace.Stop()
	select {
	case <-ended:
		return
	case <-ctx.Done():
		select {
		case <-ended:
			return
		case <-grace.C:
		}
	case <-grace.C:
	}
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session != nil {
		session.Kill(ErrClosed)
	}
	<-ended
}

// run is the goroutine.
func (s *Sender) run() {
	var on *channel
	defer func() {
		if on != nil {
			on.end()
		}
	}()
	for {
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			s.mu.Lock()
			items := s.queue
			s.queue = nil
			s.mu.Unlock()
			settle(ErrClosed, items...) // add queues nothing more
			return
		}
		for items := s.take(); len(items) > 0; items = s.take() {
			if s.ctx.Err() != nil {
				settle(ErrClosed, items...)
				continue
			}
			on = s.send(on, items)
		}
	}
}

// take takes a batch, without what nobody waits for any more.
func (s *Sender) take() []*item {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch []*item
	size := 0
	for len(s.queue) > 0 && len(batch) < maxBatch && (len(batch) == 0 || size+len(s.queue[0].Body) <= maxBytes) {
		it := s.queue[0]
		s.queue[0], s.queue = nil, s.queue[1:]
		if it.ctx.Err() != nil {
			settle(fmt.Errorf("%w: %w", ErrUnavailable, it.ctx.Err()), it)
			continue
		}
		batch, size = append(batch, it), size+len(it.Body)
	}
	return batch
}

// send publishes a batch and settles it. It returns the channel to go on with, or nil.
func (s *Sender) send(on *channel, items []*item) *channel {
	if !on.usable() {
		if on != nil {
			on.close()
		}
		var err error
		if on, err = s.open(); err != nil {
			settle(fmt.Errorf("%w: %w", ErrUnavailable, err), items...)
			return nil
		}
	}
	sent := make([]*amqp.DeferredConfirmation, 0, len(items))
	for _, it := range items {
		confirm, err := on.ch.PublishWithDeferredConfirm(s.cfg.Exchange, "", true, false, it.Publishing)
		if err != nil {
			break
		}
		sent = append(sent, confirm)
	}
	returned := map[string]bool{} // by message id: of two with one id, both count as returned
	for i, it := range items {
		if i == len(sent) || !s.confirmed(on, sent[i], items[i:]) {
			settle(on.unconfirmed(), items[i:]...)
			on.close() // what comes of it later would be taken for the next batch's
			return nil
		}
		settle(on.outcome(sent[i], returned, it.MessageId), it)
	}
	return on
}

// confirmed waits for a confirm for as long as anybody of rest waits. false: in vain.
func (s *Sender) confirmed(on *channel, confirm *amqp.DeferredConfirmation, rest []*item) bool {
	for _, it := range rest {
		select {
		case <-confirm.Done():
			return true
		case <-on.session.Done():
			return false
		case <-s.ctx.Done():
			return false
		case <-it.ctx.Done():
		}
	}
	select {
	case <-confirm.Done():
		return true
	default:
		return false
	}
}
