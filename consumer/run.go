package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// PanicError is a handler's panic.
type PanicError struct {
	Value any
	Stack []byte
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// errGoexit is a handler that ended its goroutine.
var errGoexit = errors.New("handler ended its goroutine (runtime.Goexit)")

// begin starts the handler of a claimed task in a goroutine of its own. slot is
// the scene name that its place was taken for.
func (c *Consumer) begin(work context.Context, t *persistence.Claimed, slot string, began time.Time) {
	ctx, cancel := context.WithCancelCause(work)
	r := &run{task: t, claim: persistence.Claim{ID: t.ID, Token: t.ClaimToken}, scene: c.scenes[t.Scene], began: began, cancel: cancel}
	r.expiry = time.AfterFunc(c.cfg.Lease-time.Since(began), r.lost)
	r.at.Store(&place{t.Phase, t.Tries})
	c.senders.Add(1)
	if old := c.running.add(r); old != nil {
		old.lost()
	}
	c.cfg.OnEvent(Event{Kind: EventStarted, Task: t.ID, Scene: t.Scene, Attempt: t.Attempt, Late: t.Late})
	go func() {
		defer c.slots.give(slot)
		a := &attempt{c: c, r: r, idle: true}
		if t.Deadline > 0 {
			a.deadline = began.Add(t.Deadline - t.Elapsed)
		}
		c.settle(r, a.through(ctx))
	}()
}

// call calls a handler and returns what it says, with its panic as an error.
func call[T any](ctx context.Context, a *attempt, handler step[T]) (said T, err error) {
	if d := a.r.scene.scene.Timeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, fmt.Errorf("scene timeout of %v: %w", d, context.DeadlineExceeded))
		defer cancel()
	}
	type reply struct {
		said T
		err  error
	}
	returned := make(chan reply, 1)
	// In a goroutine of its own, so that runtime.Goexit ends that one.
	go func() {
		r := reply{err: errGoexit}
		defer func() {
			if v := recover(); v != nil {
				r.err = &PanicError{Value: v, Stack: debug.Stack()}
			}
			returned <- r
		}()
		r.said, r.err = handler(ctx, a.r.task, a.deadline)
	}()
	r := <-returned
	said, err = r.said, r.err
	if err != nil && ctx.Err() != nil {
		// Why the context ended says more than that it did.
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	return said, err
}

// settle sends a run's result to the finisher, unless somebody did already.
func (c *Consumer) settle(r *run, how ending) {
	if r.settled.CompareAndSwap(false, true) {
		defer c.senders.Done()
		c.results <- result{run: r, ending: how, took: time.Since(r.began)}
	}
}

// stopHandlers gives handlers what is left of their grace, then ends their contexts, and
// waits a little for them to return.
func (c *Consumer) stopHandlers(grace time.Duration) {
	if c.awaitHandlers(max(grace, 0)) {
		return
	}
	left := c.running.all()
	c.log.Warn("grace is over, ending handlers", "running", len(left))
	for _, r := range left {
		r.cancel(ErrStopping)
	}
	c.awaitHandlers(givenUpAfter)
}

// giveUp sends a result for handlers that did not return: their outcome is unknown.
func (c *Consumer) giveUp() {
	for _, r := range c.running.all() {
		if !r.settled.Load() {
			c.log.Error("handler does not return, given up", "task", r.claim.ID, "scene", r.task.Scene)
			c.settle(r, abandoned(r))
		}
	}
}

// abandoned is the ending of a run whose handler does not return. What hangs in the phases after Execute
// has no effect to be unsure of.
func abandoned(r *run) ending {
	err := fmt.Errorf("%w: the handler did not return", ErrStopping)
	a := &attempt{r: r, idle: true}
	phase := r.at.Load().phase
	if phase == retry.PhaseExecute {
		a.idle = false
		return a.end(phase, retry.Unknown(err))
	}
	return a.end(phase, retry.Transient(err))
}

// awaitHandlers waits until every run has sent its result.
func (c *Consumer) awaitHandlers(d time.Duration) bool {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	again := time.NewTicker(100 * time.Millisecond) // freed may have been taken by the claimer
	defer again.Stop()
	for {
		busy := false
		for _, r := range c.running.all() {
			busy = busy || !r.settled.Load()
		}
		if !busy {
			return true
		}
		select {
		case <-timeout.C:
			return false
		case <-again.C:
		case <-c.slots.freed:
		}
	}
}
