package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// Job is one attempt at a task.
type Job[T any] struct {
	// Task is the row as it was claimed.
	Task retry.Task
	// Args are the task's arguments.
	Args T
	// Attempt counts from 1.
	Attempt int
	// Deadline of the task by this machine's clock. Zero: none.
	Deadline time.Time
	// Late is how long after its due time the task was claimed.
	Late time.Duration
}

// IdempotencyKey names the task to the other side, the same in every attempt.
func (j *Job[T]) IdempotencyKey() string {
	return retry.IdempotencyKey(j.Task.Service, j.Task.Scene, j.Task.Key)
}

// Steps are the handlers of a scene (design, section 6). Only Execute is required.
//
// An attempt asks Check first: done leads to Callback, in flight to Query, not started to Execute.
// Where the last outcome is unknown, Query comes before Execute in any case; took effect leads to
// Callback, did not to Execute, pending waits, and cannot tell is for a person. When Execute ends
// with an unknown outcome, Query is called at once. Whatever is certain is written down before
// the next handler is called: once it took effect nothing is executed again, and a Callback that fails is
// tried again alone. That needs no Check: a task whose effect is written down goes straight to Callback.
//
// Each handler gets a context of its own, with the scene's Timeout and the attempt (retry.AttemptOf). Only
// Execute's has the deadline: to ask about an effect, or to book one, is never too late. Query and Callback have budgets
// of their own, the scene's QueryPolicy and CallbackPolicy; when one is spent a person looks at the
// task. An error of Check, Query or Callback means "try again", unless it is permanent;
// it is never of unknown outcome, so they must be safe to repeat.
type Steps[T any] struct {
	// Check looks at our own side. nil: nothing is known there.
	Check func(ctx context.Context, job *Job[T]) (retry.Progress, error)
	// Query asks the other side. It requires a scene whose Unknown is ask, and is required there.
	Query func(ctx context.Context, job *Job[T]) (retry.Answer, error)
	// Execute does it. Required.
	Execute func(ctx context.Context, job *Job[T]) error
	// Callback books a success on our own side. nil: there is nothing to book.
	Callback func(ctx context.Context, job *Job[T]) error
}

// Handler is a scene with what runs it. Make it by Handle or HandleSteps.
type Handler struct {
	scene retry.Scene
	steps steps
}

// steps are Steps that decode the arguments. Those that are not given are nil.
type steps struct {
	check    step[retry.Progress]
	query    step[retry.Answer]
	execute  step[struct{}]
	callback step[struct{}]
}

type step[R any] = func(ctx context.Context, c *persistence.Claimed, deadline time.Time) (R, error)

// has reports whether a task in that phase can go on.
func (s steps) has(p retry.Phase, mode retry.UnknownMode) bool {
	switch p {
	case retry.PhaseQuery:
		// Where repeating is safe there is no need to ask.
		return s.query != nil || mode == retry.UnknownRepeat
	case retry.PhaseCallback:
		return s.callback != nil
	case retry.PhaseExecute:
	}
	return true
}

// Scene is the handler's scene.
func (h Handler) Scene() retry.Scene { return h.scene }

// Handle makes the handler of a scene that has only Execute. T is what the arguments are decoded into,
// as JSON; []byte and json.RawMessage get them as they are. Arguments that cannot be
// decoded stop the task as permanent.
//
// run returns nil for success. Its error is classed by the mark in its chain, else
// by the scene. It may be called again for the same task, and must return soon after its
// context is done; context.Cause says why: retry.ErrLostClaim, ErrStopping or
// a timeout. A panic is an error.
//
// A publisher.Do within run calls once and remembers nothing, because the task is tried again as a
// whole (retry.WithAttempt); retryhttp.Transport tells services that run calls. Enqueue and
// Record within run are new work, with retries of their own.
func Handle[T any](scene retry.Scene, run func(ctx context.Context, job *Job[T]) error) Handler {
	return HandleSteps(scene, Steps[T]{Execute: run})
}

// HandleSteps makes the handler of a scene that asks before it redoes. What Handle says of run holds for
// every one of the steps.
func HandleSteps[T any](scene retry.Scene, s Steps[T]) Handler {
	none := func(run func(context.Context, *Job[T]) error) func(context.Context, *Job[T]) (struct{}, error) {
		if run == nil {
			return nil
		}
		return func(ctx context.Context, job *Job[T]) (struct{}, error) { return struct{}{}, run(ctx, job) }
	}
	return Handler{scene: scene, steps: steps{
		check: decoded(s.Check), query: decoded(s.Query), execute: decoded(none(s.Execute)), callback: decoded(none(s.Callback)),
	}}
}

// decoded is run on the row that was claimed; nil where run is.
func decoded[T, R any](run func(ctx context.Context, job *Job[T]) (R, error)) step[R] {
	if run == nil {
		return nil // New says what is missing
	}
	return func(ctx context.Context, c *persistence.Claimed, deadline time.Time) (R, error) {
		job := &Job[T]{Task: c.Task, Attempt: c.Attempt, Deadline: deadline, Late: c.Late}
		switch args := any(&job.Args).(type) {
		case *[]byte:
			*args = c.Args
		case *json.RawMessage:
			*args = c.Args
		default:
			if err := json.Unmarshal(c.Args, &job.Args); err != nil {
				var none R
				return none, retry.Permanent(fmt.Errorf("decode arguments of scene %s: %w", c.Scene, err))
			}
		}
		return run(ctx, job)
	}
}
