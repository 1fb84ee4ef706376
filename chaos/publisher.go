package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// Results that a publisher process tells, besides those of consumers.
const (
	eventAccepted = "accepted" // a task that must exist, by the call's word
	eventDone     = "done"     // Do or Record: the call succeeded
	eventRefused  = "refused"  // the task is the caller's again, or the call's error is permanent
	eventOdd      = "odd"      // an error that no fault explains
)

// far is the delay of tasks that still wait at the end of the run; some lie beyond the delay queues' horizon.
const far = 20 * time.Minute

// publish is a publisher process: it hands tasks over in every way until ctx is done.
func (w *worker) publish(ctx context.Context) error {
	store, err := w.store()
	if err != nil {
		return err
	}
	p, err := publisher.New(publisher.Config{
		Service: service, Store: store, AMQPURL: w.AMQPURL, Scenes: retryScenes(), Name: w.Name, Lease: lease, RecordTimeout: 5 * time.Second, Logger: w.log,
	})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	h := &handover{worker: w, p: p, store: store, call: newCaller(w.Downstream, w.Name)}
	var wg sync.WaitGroup
	for _, m := range []struct {
		every time.Duration
		do    func(context.Context)
	}{
		{160 * time.Millisecond, h.do}, {300 * time.Millisecond, h.record}, {250 * time.Millisecond, h.enqueue},
		{1500 * time.Millisecond, h.enqueueMany}, {500 * time.Millisecond, h.enqueueTx},
	} {
		// Ends with ctx. Calls run beside each other, so that one that lasts holds up none; at most so many.
		places := make(chan struct{}, 16)
		wg.Go(func() {
			for wait(ctx, m.every) {
				select {
				case places <- struct{}{}:
					wg.Go(func() {
						defer func() { <-places }()
						m.do(ctx)
					})
				default:
				}
			}
		})
	}
	wg.Wait()
	// A message whose queue was deleted meanwhile may never be confirmed; the publisher waits 30 s for it. A Close that is cut
	// short is an error.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 45*time.Second)
	defer cancel()
	h.call.client.CloseIdleConnections()
	return errors.Join(p.Close(end), store.Close())
}

// handover makes tasks and hands them over.
type handover struct {
	*worker
	p     *publisher.Publisher
	store *persistence.Postgres
	call  *caller
	last  atomic.Int64
}

// task makes a task with a key that no other has.
func (h *handover) task(how string) publisher.Task {
	key := fmt.Sprintf("%s:%s:%d", how, h.Name, h.last.Add(1))
	list := scenes()
	t := publisher.Task{Scene: list[draw(h.Seed, "scene", key)%len(list)].Name, Key: key, Args: args{Key: key}}
	switch n := draw(h.Seed, "delay", key); {
	case how == "do" || how == "record":
	case n < 2:
		t.Delay = far + time.Duration(n)*time.Hour
	case n < 20:
		t.Delay = time.Duration(n) * 100 * time.Millisecond
	}
	return t
}

// inline makes the call of Do or Record. Each try is a run of its own.
func (h *handover) inline(t publisher.Task) func(context.Context) error {
	try := 0
	return func(ctx context.Context) error {
		try++
		return h.call.call(ctx, callHead{Scene: t.Scene, Key: t.Key, Run: fmt.Sprintf("inline:%s:%s:%d", h.Name, t.Key, try), Step: stepExecute})
	}
}

func (h *handover) do(ctx context.Context) {
	t := h.task("do")
	err := h.p.Do(ctx, t, h.inline(t))
	var esc *retry.EscalatedError
	switch {
	case err == nil:
		h.tell(eventDone, t, 0, nil)
	case errors.As(err, &esc):
		h.tell(eventAccepted, t, esc.TaskID, nil)
	default:
		h.failed(ctx, t, err)
	}
}

func (h *handover) record(ctx context.Context) {
	t := h.task("record")
	err := h.p.Record(ctx, t, h.inline(t))
	var esc *retry.EscalatedError
	var open *publisher.UnsettledError
	switch {
	case err == nil:
		h.tell(eventDone, t, 0, nil)
	case errors.As(err, &esc):
		h.tell(eventAccepted, t, esc.TaskID, nil)
	case errors.As(err, &open):
		h.tell(eventAccepted, t, open.TaskID, nil)
	default:
		h.failed(ctx, t, err)
	}
}

// enqueue repeats a call whose answer was lost, which the key makes safe.
func (h *handover) enqueue(ctx context.Context) {
	t := h.task("enqueue")
	for {
		r, err := h.p.Enqueue(ctx, t)
		if err == nil {
			h.tell(eventAccepted, t, r.ID, nil)
			return
		}
		if h.failed(ctx, t, err); !wait(ctx, 300*time.Millisecond) {
			return
		}
	}
}

func (h *handover) enqueueMany(ctx context.Context) {
	list := make([]publisher.Task, 4)
	for i := range list {
		list[i] = h.task("many")
	}
	results, err := h.p.EnqueueMany(ctx, list)
	for i, t := range list {
		if err != nil {
			h.failed(ctx, t, err)
		} else {
			h.tell(eventAccepted, t, results[i].ID, nil)
		}
	}
}

// enqueueTx stores a task with a row of the caller's own. Some transactions are rolled back, and some wake-ups forgotten.
func (h *handover) enqueueTx(ctx context.Context) {
	t := h.task("tx")
	ids, err := h.inTx(ctx, t)
	switch {
	case err != nil:
		h.failed(ctx, t, err)
	case len(ids) > 0:
		h.tell(eventAccepted, t, ids[0], nil)
		if draw(h.Seed, "wake", t.Key) < 60 {
			_ = h.p.Wake(ctx, ids...) // else the scan does
		}
	}
}

func (h *handover) inTx(ctx context.Context, t publisher.Task) ([]int64, error) {
	tx, err := h.store.DB().BeginTxx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, `INSERT INTO `+auditSchema+`.business (key) VALUES ($1)`, t.Key); err != nil {
		return nil, err
	}
	r, err := h.p.EnqueueTx(ctx, tx, t)
	if err != nil || draw(h.Seed, "rollback", t.Key) < 20 {
		return nil, err
	}
	if err := tx.Commit(); err != nil {
		return nil, err
	}
	return []int64{r[0].ID}, nil
}

// failed tells an error. Faults explain all but those that name a wrong input, a key that is held or a missing schema.
func (h *handover) failed(ctx context.Context, t publisher.Task, err error) {
	event := eventRefused
	for _, odd := range []error{retry.ErrInvalid, retry.ErrKeyConflict, retry.ErrSchema, retry.ErrState} {
		if errors.Is(err, odd) {
			event = eventOdd
		}
	}
	if ctx.Err() == nil || event == eventOdd {
		h.tell(event, t, 0, err)
	}
}

func (h *handover) tell(event string, t publisher.Task, id int64, err error) {
	s := said{Event: event, Key: t.Key, Scene: t.Scene, Task: id}
	if err != nil {
		s.Text = err.Error()
	}
	h.say(s)
}
