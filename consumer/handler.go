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
	return j.Task.Service + "/" + j.Task.Scene + "/" + j.Task.Key
}

// Handler is a scene with the function that runs it. Make it by Handle.
type Handler struct {
	scene retry.Scene
	run   func(ctx context.Context, c *persistence.Claimed, deadline time.Time) error
}

// Scene is the handler's scene.
func (h Handler) Scene() retry.Scene { return h.scene }

// Handle makes the handler of a scene. T is what the arguments are decoded into, as
// JSON; []byte and json.RawMessage get them as they are. Arguments that cannot be
// decoded stop the task as permanent.
//
// run returns nil for success. Its error is classed by the mark in its chain, else
// by the scene. It may be called again for the same task, and must return soon after its
// context is done; context.Cause says why: retry.ErrLostClaim, ErrStopping or
// a timeout. A panic is an error.
func Handle[T any](scene retry.Scene, run func(ctx context.Context, job *Job[T]) error) Handler {
	if run == nil {
		return Handler{scene: scene} // New says so
	}
	return Handler{scene: scene, run: func(ctx context.Context, c *persistence.Claimed, deadline time.Time) error {
		job := &Job[T]{Task: c.Task, Attempt: c.Attempt, Deadline: deadline, Late: c.Late}
		switch args := any(&job.Args).(type) {
		case *[]byte:
			*args = c.Args
		case *json.RawMessage:
			*args = c.Args
		default:
			if err := json.Unmarshal(c.Args, &job.Args); err != nil {
				return retry.Permanent(fmt.Errorf("decode arguments of scene %s: %w", scene.Name, err))
			}
		}
		return run(ctx, job)
	}}
}
