package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/internal/waker"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// submitPrefetch bounds the messages of the submit queue that one process holds, each of which
// may be as large as Config.MaxPayload.
const submitPrefetch = 64

// errStoreAway is joined to the error of a subscription that ended while Postgres was away.
var errStoreAway = errors.New("postgres is away")

// submitLoop is the submitter: it stores what arrives in the submit queue, until ctx is done.
// It needs no free place for a handler. It alone touches its channel.
//
// While Postgres is away it holds what it has in hand, at most submitPrefetch, and tries again:
// to hand messages back would only count deliveries, after some of which the broker parks
// them. A channel that the broker closes meanwhile (it may wait for acks for 30 min only) is
// not replaced before Postgres is back.
func (c *Consumer) submitLoop(ctx, work context.Context) {
	said, declare := false, false
	var pause pause
	for {
		began := time.Now()
		err := c.takeSubmissions(ctx, work, declare)
		if ctx.Err() != nil {
			return
		}
		if !said {
			c.log.Warn("subscription to the submit queue lost, trying again", "error", err)
		}
		if errors.Is(err, errStoreAway) {
			_ = backoff(ctx, func() (bool, error) {
				err := c.cfg.Store.CheckSchema(ctx)
				return err == nil || errors.Is(err, retry.ErrSchema), err
			})
		}
		declare = c.cfg.Declare && missing(err)
		said = !errors.Is(err, errSubscribed)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.after(time.Since(began))):
		}
	}
}

// takeSubmissions reads the submit queue until the channel dies or ctx is done.
func (c *Consumer) takeSubmissions(ctx, work context.Context, declare bool) error {
	session, err := c.conn.Session(ctx)
	if err != nil {
		return err
	}
	if declare {
		if err := c.declare(ctx, session); err != nil {
			return err
		}
	}
	sub, err := c.subscribeTo(ctx, session, c.names.Submit(), submitPrefetch)
	if err != nil {
		return err
	}
	// The library hands deliveries over one by one, so that a batch would seldom find a second.
	// There is room for all that the broker sends without acks: the goroutine never waits for us,
	// and ends with the channel.
	arrived := make(chan amqp.Delivery, submitPrefetch)
	go func() {
		defer close(arrived)
		for d := range sub.msgs {
			arrived <- d
		}
	}()
	for err == nil {
		var batch []*submission
		if batch, err = c.gatherSubmissions(ctx, sub, arrived); err == nil {
			err = c.takeIn(ctx, work, sub, batch)
		}
	}
	if !sub.dead() {
		err = errors.Join(err, sub.close())
	}
	return err
}

// submission is a message in the submitter's hand.
type submission struct {
	amqp.Delivery
	msg    submit.Message
	id     int64 // taken once, so that an insert that is made again meets its own row
	stored bool
	refuse error // why it is parked; nil: it is not
}

// gatherSubmissions waits for a message and takes those that have arrived with it.
func (c *Consumer) gatherSubmissions(ctx context.Context, sub *subscription, arrived <-chan amqp.Delivery) ([]*submission, error) {
	var batch []*submission
	add := func(d amqp.Delivery) {
		s := &submission{Delivery: d}
		s.msg, s.refuse = submit.Decode(&s.Delivery, c.cfg.MaxPayload)
		s.id = s.msg.ID
		batch = append(batch, s)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-sub.cancelled:
		return nil, sub.gone()
	case d, ok := <-arrived:
		if !ok {
			return nil, sub.lost()
		}
		add(d)
	}
	for len(batch) < submitPrefetch {
		select {
		case d, ok := <-arrived:
			if !ok {
				return nil, sub.lost()
			}
			add(d)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// takeIn stores a batch, parks what cannot be stored, and acknowledges it. An error means that
// the channel has to be given up, and with it the batch, which the broker delivers again.
func (c *Consumer) takeIn(ctx, work context.Context, sub *subscription, batch []*submission) error {
	away := false
	err := backoff(ctx, func() (bool, error) {
		call, cancel := c.patient(ctx, work)
		defer cancel()
		err := c.store(call, batch)
		if err != nil && !away {
			away = true
			c.log.Warn("cannot store submitted tasks, trying again", "error", err, "tasks", len(batch))
		}
		if err != nil && sub.dead() {
			return true, errors.Join(errSubscribed, errStoreAway, err)
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	if away {
		c.log.Info("submitted tasks are stored again")
	}
	last, err := c.parkRefused(work, sub, batch)
	if err != nil || last == 0 {
		return err
	}
	return sub.ack(last)
}

// store stores the tasks of a batch and publishes their wake-ups. If Postgres refuses the data of
// one, the others are stored one by one.
func (c *Consumer) store(ctx context.Context, batch []*submission) error {
	var todo []*submission
	for _, s := range batch {
		if s.refuse == nil && !s.stored {
			todo = append(todo, s)
		}
	}
	err := c.storeAll(ctx, todo)
	if !errors.Is(err, retry.ErrInvalid) {
		return err
	}
	for _, s := range todo {
		err := c.storeAll(ctx, []*submission{s})
		if errors.Is(err, retry.ErrInvalid) {
			s.refuse, err = err, nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Consumer) storeAll(ctx context.Context, todo []*submission) error {
	list, err := c.newTasks(ctx, todo)
	if err != nil || len(list) == 0 {
		return err
	}
	done, err := c.cfg.Store.Submit(ctx, list)
	if err != nil {
		return err
	}
	now := time.Now() // after the commit, so later than the rows' times: not early
	var wakes []waker.Wake
	for i, d := range done {
		s := todo[i]
		if d.Conflict {
			s.refuse = conflict(s, d)
			continue
		}
		s.stored = true
		if d.Created && d.Status == retry.StatusWait && !d.Far {
			wakes = append(wakes, waker.Wake{ID: d.ID, Scene: s.msg.Scene, Due: now.Add(d.Delay)})
		}
		c.cfg.OnEvent(Event{Kind: EventSubmitted, Task: d.ID, Scene: s.msg.Scene, Status: d.Status})
	}
	c.waker.Enqueue(wakes...)
	return nil
}

func conflict(s *submission, d persistence.Submitted) error {
	if s.msg.Key != "" {
		return fmt.Errorf("scene %s, key %q: %w (task %d)", s.msg.Scene, retry.CutString(s.msg.Key, 80), retry.ErrKeyConflict, d.ID)
	}
	return fmt.Errorf("message id %q or task id %d was used for another task (task %d)", retry.CutString(s.msg.MessageID, 80), s.msg.ID, d.ID)
}

// parkRefused publishes what was refused to the dead exchange, with the reason, and waits for the
// confirms, so that a crash doubles a message rather than losing one. What cannot be published
// is rejected, and the broker dead-letters it without a reason. It returns the last tag that is
// to be acknowledged; zero for none.
func (c *Consumer) parkRefused(work context.Context, sub *subscription, batch []*submission) (last uint64, err error) {
	var list []amqp.Publishing
	var refused []*submission
	reject := map[*submission]error{}
	for _, s := range batch {
		if s.refuse == nil {
			continue
		}
		c.log.Error("submitted message is not taken, parked", "queue", sub.queue, "message_id", retry.CutString(s.MessageId, 80), "bytes", len(s.Body), "reason", s.refuse)
		if p, ok := submit.Park(&s.Delivery, s.refuse, time.Now()); ok {
			list, refused = append(list, p), append(refused, s)
		} else {
			reject[s] = errors.New("its headers leave no room for the reason")
		}
	}
	if len(list) > 0 {
		ctx, cancel := context.WithTimeout(work, callTimeout)
		defer cancel()
		for i, err := range c.parker.Send(ctx, list...) {
			if err != nil {
				reject[refused[i]] = err
			}
		}
	}
	for _, s := range batch {
		if s.refuse != nil {
			c.cfg.OnEvent(Event{Kind: EventParked})
		}
		why := reject[s]
		if why == nil {
			last = s.DeliveryTag
			continue
		}
		c.log.Warn("a parked message goes without its reason", "message_id", retry.CutString(s.MessageId, 80), "error", why)
		if err := s.Reject(false); err != nil {
			return 0, errors.Join(errSubscribed, fmt.Errorf("park: %w", err))
		}
	}
	return last, nil
}
