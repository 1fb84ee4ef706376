package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/spillway-mq/spillway/persistence"
)

// Enqueue stores a task for the service's consumers and returns when it is
// committed. Its wake-up is published in the background.
//
// While Postgres is away the task goes to the service's submit queue, and Enqueue
// returns when the broker has confirmed it (Result.Submitted); a consumer stores it
// once Postgres is back, exactly once. Postgres is given half of the time until ctx's
// deadline, at most half of Config.RecordTimeout; the queue gets as much.
//
// Within an attempt it is new work as anywhere: give the task a Key, so that an attempt
// that is repeated does not store it twice.
//
// Errors: retry.ErrInvalid, naming every field that is wrong; *ConflictError
// (retry.ErrKeyConflict) with the holder in the Result; ErrClosed; retry.ErrNotRecorded
// joined with both reasons, if both servers are away; the store's, if ctx was over
// or the schema is not there. After the last three the task may have been stored
// nevertheless, its answer lost: with a Key it is safe to repeat the call.
func (p *Publisher) Enqueue(ctx context.Context, t Task) (Result, error) {
	// On its own path and not as EnqueueMany of one, so that errors name no index.
	if err := p.enter(); err != nil {
		return Result{}, err
	}
	defer p.leave()
	task, err := p.prepare(t)
	if err != nil {
		return Result{}, err
	}
	in, submitted, err := p.insert(ctx, []persistence.NewTask{task}, nil)
	if err != nil {
		return Result{}, err
	}
	return result(0, t, in[0], submitted)
}

// EnqueueMany stores tasks in one transaction, and returns their results in the
// given order. It is far cheaper than as many calls of Enqueue.
//
// If a task is wrong, none is stored, and the joined errors name every one that
// is, by its index. If keys are held by tasks with other arguments, the others are
// stored nevertheless: all results are returned, together with a joined
// *ConflictError for each (retry.ErrKeyConflict).
//
// While Postgres is away all tasks go to the submit queue, see Enqueue, with as much
// time again for each thousand of them; then they are not in one transaction, and
// after an error some may be in the queue.
func (p *Publisher) EnqueueMany(ctx context.Context, tasks []Task) ([]Result, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	list, err := p.validateAll(tasks)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	in, submitted, err := p.insert(ctx, list, nil)
	if err != nil {
		return nil, err
	}
	return results(tasks, in, submitted)
}

// EnqueueTx stores tasks inside the caller's transaction, which must be on the
// Store's database: they exist exactly if it commits. It publishes nothing; after
// the commit hand the ids to Wake. Without Wake the scan wakes the tasks, so the
// difference is one scan's delay. It never uses the submit queue, which could not take
// part in the transaction.
//
// Errors as those of EnqueueMany; the caller decides what a conflict means. After
// an error of the store the transaction can only be rolled back.
func (p *Publisher) EnqueueTx(ctx context.Context, tx persistence.Tx, tasks ...Task) ([]Result, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	list, err := p.validateAll(tasks)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	in, err := p.cfg.Store.InsertTx(ctx, tx, list)
	if err != nil {
		return nil, err
	}
	return results(tasks, in, false)
}

func (p *Publisher) validateAll(tasks []Task) ([]persistence.NewTask, error) {
	list := make([]persistence.NewTask, len(tasks))
	var errs []error
	for i, t := range tasks {
		var err error
		if list[i], err = p.prepare(t); err != nil {
			errs = append(errs, fmt.Errorf("task %d: %w", i, err))
		}
	}
	return list, errors.Join(errs...)
}

func result(i int, t Task, in persistence.Inserted, submitted bool) (Result, error) {
	r := Result{ID: in.ID, Created: in.Created, Status: in.Status, Submitted: submitted}
	if in.Conflict {
		return r, &ConflictError{Index: i, Scene: t.Scene, Key: t.Key, Holder: in.ID}
	}
	return r, nil
}

func results(tasks []Task, in []persistence.Inserted, submitted bool) ([]Result, error) {
	out := make([]Result, len(in))
	var errs []error
	for i := range in {
		var err error
		if out[i], err = result(i, tasks[i], in[i], submitted); err != nil {
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}
