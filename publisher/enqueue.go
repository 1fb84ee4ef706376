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
// Errors: retry.ErrInvalid, naming every field that is wrong; *ConflictError
// (retry.ErrKeyConflict) with the holder in the Result; ErrClosed; the store's.
// After an error of the store, such as a lost connection, the task may have been
// stored: with a Key it is safe to repeat the call.
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
	in, err := p.insert(ctx, []persistence.NewTask{task})
	if err != nil {
		return Result{}, err
	}
	return result(0, t, in[0])
}

// EnqueueMany stores tasks in one transaction, and returns their results in the
// given order. It is far cheaper than as many calls of Enqueue.
//
// If a task is wrong, none is stored, and the joined errors name every one that
// is, by its index. If keys are held by tasks with other arguments, the others are
// stored nevertheless: all results are returned, together with a joined
// *ConflictError for each (retry.ErrKeyConflict).
func (p *Publisher) EnqueueMany(ctx context.Context, tasks []Task) ([]Result, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	list, err := p.validateAll(tasks)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	in, err := p.insert(ctx, list)
	if err != nil {
		return nil, err
	}
	return results(tasks, in)
}

// EnqueueTx stores tasks inside the caller's transaction, which must be on the
// Store's database: they exist exactly if it commits. It publishes nothing; after
// the commit hand the ids to Wake. Without Wake the scan wakes the tasks, so the
// difference is one scan's delay.
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
	return results(tasks, in)
}

// insert stores tasks outside of a caller's transaction and hands their wake-ups
// over. All that Do, Enqueue and EnqueueMany store goes through here.
func (p *Publisher) insert(ctx context.Context, tasks []persistence.NewTask) ([]persistence.Inserted, error) {
	in, err := p.cfg.Store.Insert(ctx, tasks)
	if err != nil {
		return nil, err
	}
	p.wakeInserted(tasks, in)
	return in, nil
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

func result(i int, t Task, in persistence.Inserted) (Result, error) {
	r := Result{ID: in.ID, Created: in.Created, Status: in.Status}
	if in.Conflict {
		return r, &ConflictError{Index: i, Scene: t.Scene, Key: t.Key, Holder: in.ID}
	}
	return r, nil
}

func results(tasks []Task, in []persistence.Inserted) ([]Result, error) {
	out := make([]Result, len(in))
	var errs []error
	for i := range in {
		var err error
		if out[i], err = result(i, tasks[i], in[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}
