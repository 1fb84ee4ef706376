package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// A share of the time is for shareTasks tasks or shareBytes of arguments, what is begun counts.
const (
	shareTasks = 1000
	shareBytes = 8 << 20
)

// insert stores tasks outside of a caller's transaction and hands their wake-ups over; while
// the store is away it sends them to the submit queue (submitted). All that Do, Enqueue and
// EnqueueMany store goes through here. s is the scene of an escalation, nil for other tasks.
//
// The store gets half of Config.RecordTimeout for each shareTasks tasks, and no more than half
// of what ctx leaves; the queue gets as much, so that a store that hangs does not use up the
// time of both.
//
// The tasks have their ids before the insert is tried: should its answer be lost, the message
// carries the id, and a row that is there is recognised. Where there is no id, nothing was
// inserted.
func (p *Publisher) insert(ctx context.Context, tasks []persistence.NewTask, s *scene) (in []persistence.Inserted, submitted bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	began := time.Now()
	share := p.share(tasks)
	if err = p.outage.hint(); err == nil {
		if in, err = p.inStore(ctx, share, tasks, s); err == nil {
			if p.outage.over() {
				p.cfg.Logger.Info("postgres is back")
			}
			p.wakeInserted(tasks, in)
			return in, false, nil
		}
		if ctx.Err() != nil || !away(err) {
			return nil, false, err
		}
	}
	if p.outage.say() {
		p.cfg.Logger.Warn("postgres is away: tasks go to the submit queue", "error", err)
	}
	if failed := p.submit(ctx, share, tasks, began); failed != nil {
		return nil, false, errors.Join(retry.ErrNotRecorded, fmt.Errorf("postgres: %w", err), fmt.Errorf("submit queue: %w", failed))
	}
	in = make([]persistence.Inserted, len(tasks))
	for i, t := range tasks {
		if in[i] = (persistence.Inserted{ID: t.ID, Status: t.Status}); t.Status == "" {
			in[i].Status = retry.StatusWait
		}
	}
	return in, true, nil
}

func (p *Publisher) share(tasks []persistence.NewTask) time.Duration {
	size := 0
	for _, t := range tasks {
		size += len(t.Args)
	}
	return p.cfg.RecordTimeout / 2 * time.Duration(1+max((len(tasks)-1)/shareTasks, size/shareBytes))
}

// inStore is insert without the queue. It gives the tasks their ids.
func (p *Publisher) inStore(ctx context.Context, share time.Duration, tasks []persistence.NewTask, s *scene) ([]persistence.Inserted, error) {
	if deadline, ok := ctx.Deadline(); ok {
		share = min(share, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, share)
	defer cancel()
	var version int
	var err error
	if s != nil {
		if version, err = bounded(ctx, p, func(ctx context.Context) (int, error) { return p.policyVersion(ctx, s) }); err != nil {
			return nil, err
		}
	}
	ids, err := bounded(ctx, p, func(ctx context.Context) ([]int64, error) { return p.cfg.Store.NextIDs(ctx, len(tasks)) })
	if err != nil {
		return nil, err
	}
	for i := range tasks {
		tasks[i].ID = ids[i]
	}
	if s != nil {
		if err := decide(&tasks[0], s, version); err != nil {
			return nil, err
		}
	}
	return bounded(ctx, p, func(ctx context.Context) ([]persistence.Inserted, error) { return p.cfg.Store.Insert(ctx, tasks) })
}

// bounded calls the store and waits for no longer than ctx. The store's own end of a call on a
// silent connection takes up to a second more; the goroutine ends with it, and Close waits for
// that as for a call.
func bounded[T any](ctx context.Context, p *Publisher, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	began := time.Now()
	answered := make(chan answer, 1)
	p.calls.Add(1) // within a call, so before Close has seen the last one end
	go func() {
		defer p.calls.Done()
		v, err := f(ctx)
		answered <- answer{v, err}
	}()
	var a answer
	select {
	case a = <-answered:
	case <-ctx.Done():
		a.err = fmt.Errorf("no answer from the store: %w", ctx.Err())
	}
	if a.err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && time.Since(began) >= outageHang {
		p.outage.hung(a.err)
	}
	return a.value, a.err
}

// submit sends tasks to the submit queue and waits until all are confirmed.
func (p *Publisher) submit(ctx context.Context, share time.Duration, tasks []persistence.NewTask, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, share)
	defer cancel()
	list := make([]amqp.Publishing, len(tasks))
	for i := range tasks {
		list[i] = submit.Encode(p.message(&tasks[i], began))
	}
	var first error
	failed := 0
	for _, err := range p.sender.Send(ctx, list...) {
		if err != nil {
			failed++
			if first == nil {
				first = err
			}
		}
	}
	if failed > 0 && len(list) > 1 {
		return fmt.Errorf("%d of %d messages: %w", failed, len(list), first)
	}
	return first
}

// message makes the message of a task whose times count from began.
func (p *Publisher) message(t *persistence.NewTask, began time.Time) submit.Message {
	m := submit.Message{
		MessageID: uuid.NewString(), ID: t.ID, Scene: t.Scene, Key: t.Key, Args: t.Args, ContentType: t.ContentType, Headers: t.Headers,
		Delay: t.Delay, Deadline: t.Deadline, Workflow: t.Workflow, Sent: began, By: p.cfg.Name,
	}
	if t.Event != nil {
		f := t.Event.Facts
		// The consumer decides anew, with the time in the queue: it knows the id.
		m.Delay, m.Deadline = 0, f.Deadline
		m.Attempt = &submit.Attempt{Class: f.Class, Error: t.LastError, Elapsed: f.Elapsed, RetryAfter: f.RetryAfter, Calls: f.Calls, Note: t.Event.Note}
	}
	return m
}
