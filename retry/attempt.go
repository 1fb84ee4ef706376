package retry

import (
	"context"
	"time"
)

// Attempt is what the work in a context is part of: one run of a handler, or one
// call of publisher.Do or Record. Whoever made it tries again when it fails, so what
// runs within it should not (see WithAttempt).
//
// Consumers and publishers put it into the contexts that they hand out; package
// retryhttp carries it to other processes. What came from another process
// is a hint: any field but Number may be missing.
type Attempt struct {
	// Number counts the task's attempts from 1. Zero: the call within Do or Record,
	// all tries of the local tier included.
	Number int
	// Task is the row's id. Zero: there is none yet (Do), or it is not known.
	Task int64
	// Service, Scene and Key name the task. Empty where not known; Key also where
	// the task of a Do was given none.
	Service, Scene, Key string
	// Deadline of the task by this machine's clock: after it nothing begins. What
	// has begun may go on. Zero: none, or Check, Query or Callback, which may come
	// after it.
	Deadline time.Time
}

// IdempotencyKey names the task to the other side, the same in every attempt. Empty where
// service, scene or key is not known.
func (a Attempt) IdempotencyKey() string {
	if a.Service == "" || a.Scene == "" || a.Key == "" {
		return ""
	}
	return IdempotencyKey(a.Service, a.Scene, a.Key)
}

// IdempotencyKey is how a task is named to the other side: service/scene/key.
func IdempotencyKey(service, scene, key string) string { return service + "/" + scene + "/" + key }

type attemptKey struct{}

// WithAttempt says that what runs with the returned context is part of a. Retries must
// not multiply across layers, so publisher.Do then calls once, and returns the call's
// error as it is instead of remembering the task: a's owner does.
//
// Services seldom need it. Consumers, publishers and retryhttp call it; do so too where
// an attempt comes in by another way than these.
func WithAttempt(ctx context.Context, a Attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, &a)
}

// WithoutAttempt is for work that begins within an attempt and is not part of it: what
// outlives it, or what its owner would not do again. It keeps all else of ctx.
func WithoutAttempt(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{}, (*Attempt)(nil))
}

// AttemptOf returns what the work in ctx is part of, and false where nobody above tries
// again.
func AttemptOf(ctx context.Context) (Attempt, bool) {
	if a, _ := ctx.Value(attemptKey{}).(*Attempt); a != nil {
		return *a, true
	}
	return Attempt{}, false
}
