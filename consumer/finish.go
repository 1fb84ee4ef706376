package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/spillway-mq/spillway/internal/waker"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// maxFinish bounds a batch of results.
const maxFinish = 512

// result is how a run ended.
type result struct {
	ending
	run  *run
	took time.Duration // since run.began
}

// finishLoop is the finisher: it writes results in batches, as many as have
// gathered, and publishes the next wake-ups after the commit. It ends when results is
// closed and empty. While Postgres is away it tries again until work is done: nobody
// else can end the leases meanwhile.
func (c *Consumer) finishLoop(work context.Context) {
	for first := range c.results {
		for batch := gatherResults(first, c.results); len(batch) > 0; {
			var later []result
			batch, later = distinct(batch)
			c.finish(work, batch)
			batch = later
		}
	}
}

// gatherResults takes what has gathered.
func gatherResults(first result, results <-chan result) []result {
	batch := []result{first}
	for len(batch) < maxFinish {
		select {
		case r, ok := <-results:
			if !ok {
				return batch
			}
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// distinct splits off the second results of a task. They come of two claims, one of which was
// lost, and the statement could not tell them apart.
func distinct(batch []result) (first, later []result) {
	seen := make(map[int64]bool, len(batch))
	for _, r := range batch {
		if seen[r.run.claim.ID] {
			later = append(later, r)
			continue
		}
		seen[r.run.claim.ID] = true
		first = append(first, r)
	}
	return first, later
}

func (c *Consumer) finish(ctx context.Context, batch []result) {
	defer func() {
		for _, r := range batch {
			c.running.remove(r.run)
		}
	}()
	results := make([]persistence.Result, len(batch))
	var done []persistence.Finished
	said := false
	err := backoff(ctx, func() (bool, error) {
		var err error
		for i, r := range batch {
			if results[i], err = c.outcome(ctx, r); err != nil {
				break
			}
		}
		if err == nil {
			done, err = c.cfg.Store.Finish(ctx, results)
		}
		if err != nil && errors.Is(err, retry.ErrInvalid) {
			return true, err // a bug of ours; trying again will not help
		}
		if err != nil && !said {
			said = true
			c.log.Warn("cannot write results, trying again", "error", err, "tasks", len(batch))
		}
		return err == nil, err
	})
	if err != nil {
		c.log.Error("results were not written; the leases run out and the outcomes are unknown", "error", err, "tasks", len(batch))
		return
	}
	now := time.Now()
	var wakes []waker.Wake
	for i, f := range done {
		r, t := results[i], batch[i].run.task
		if !f.Applied {
			c.log.Warn("result came too late: the claim was lost", "task", f.ID, "scene", t.Scene, "attempt", t.Attempt, "result", r.Status)
			c.cfg.OnEvent(Event{Kind: EventLostClaim, Task: f.ID, Scene: t.Scene, Attempt: t.Attempt, Status: r.Status, Reason: r.Reason})
			continue
		}
		if r.Status == retry.StatusWait && !f.Far {
			wakes = append(wakes, waker.Wake{ID: f.ID, Scene: t.Scene, Due: now.Add(r.Delay)})
		}
		c.cfg.OnEvent(Event{Kind: EventFinished, Task: f.ID, Scene: t.Scene, Attempt: t.Attempt, Status: r.Status, Reason: r.Reason})
	}
	c.waker.Enqueue(wakes...)
}

// outcome turns how a run ended into what is written.
func (c *Consumer) outcome(ctx context.Context, r result) (persistence.Result, error) {
	t := r.run.task
	if r.err == nil {
		out := persistence.Result{Claim: r.run.claim, Status: retry.StatusSuccess, Reason: retry.ReasonSuccess, Phase: r.phase, Idle: r.idle}
		if r.note != "" {
			out.Event = &persistence.Event{Actor: c.cfg.Name, Note: r.note}
		}
		return out, nil
	}
	version, err := c.policy(ctx, r.run.scene)
	if err != nil {
		return persistence.Result{}, err
	}
	class, text, after := describe(r.run.scene.scene, r.err)
	facts := retry.Facts{
		TaskID: t.ID, Attempt: t.Attempt, Uncharged: t.Uncharged, Crashes: t.Crashes,
		Elapsed: t.Elapsed + r.took, Deadline: t.Deadline, Class: class, RetryAfter: after,
		Tries: r.tries, Idle: r.idle, Answer: r.answer,
	}
	if r.phase != retry.PhaseExecute {
		facts.Phase = r.phase
	}
	if r.idle {
		facts.Uncharged++
	}
	return persistence.Decided(r.run.claim, facts, retry.Decide(r.run.scene.rules, facts), version, c.cfg.Name, text), nil
}

// describe asks the handler's error what it is. Error and Classify are code of the
// user's, which may panic: on a typed nil, say.
func describe(s retry.Scene, err error) (class retry.Class, text string, after time.Duration) {
	defer func() {
		if v := recover(); v != nil {
			class, after = retry.ClassUnknown, 0
			text = fmt.Sprintf("panic: %v, while looking at an error of type %T\n%s", v, err, debug.Stack())
		}
	}()
	class, text = s.ClassOf(err), err.Error()
	after, _ = retry.RetryAfter(err)
	return class, text, after
}
