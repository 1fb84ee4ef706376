package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// ending is how an attempt ended: what Decide is asked about.
type ending struct {
	err    error // nil: success
	phase  retry.Phase
	tries  int
	idle   bool
	answer retry.Answer
	note   string // of a success that Execute alone does not explain
}

// attempt is one attempt on its way through the handlers. It belongs to the goroutine of its run.
type attempt struct {
	c        *Consumer
	r        *run
	deadline time.Time
	idle     bool // no Execute was called yet
}

// through takes a task through its handlers, as design section 6 says. A step after which an effect
// is certain, or Execute may be called again, is written down before the next handler is called: if the
// process dies then, the task goes on from there. What is not written down is unknown.
func (a *attempt) through(ctx context.Context) ending {
	t, steps := a.r.task, a.r.scene.steps
	phase := t.Phase
	ctx = retry.WithAttempt(ctx, a.info())
	if t.Deadline > 0 && t.Elapsed >= t.Deadline {
		return a.end(phase, retry.Transient(retry.ErrDeadline))
	}
	if phase == retry.PhaseCallback {
		return a.callback(ctx, "")
	}
	ask := phase == retry.PhaseQuery || t.Unknown && steps.query != nil
	if steps.check != nil {
		progress, err := call(ctx, a, steps.check)
		switch {
		case err != nil:
			// Without effect, whatever it is; yet it spends an attempt of the phase.
			a.idle = phase != retry.PhaseExecute
			return a.end(phase, harmless(a.r.scene.scene, "check", err))
		case progress == retry.Done:
			return a.booked(ctx, retry.ReasonCheckDone, "Check: done")
		case progress == retry.InFlight:
			ask = true
		case progress != retry.NotStarted:
			a.idle = phase != retry.PhaseExecute
			return a.end(phase, retry.Transient(fmt.Errorf("check said %q: must be %s, %s or %s", progress, retry.NotStarted, retry.InFlight, retry.Done)))
		}
	}
	if ask && steps.query != nil {
		if end, redo := a.ask(ctx, nil); !redo {
			return end
		}
	} else if ask && a.r.scene.scene.Unknown != retry.UnknownRepeat {
		return a.end(retry.PhaseExecute, retry.Unknown(errors.New("check says that it is in flight, and the scene has no Query handler to ask")))
	}
	return a.execute(ctx)
}

// info is what handlers' contexts say of the attempt.
func (a *attempt) info() retry.Attempt {
	t := a.r.task
	return retry.Attempt{Number: t.Attempt, Task: t.ID, Service: t.Service, Scene: t.Scene, Key: t.Key}
}

// execute calls Execute. Where it leaves the outcome open, the other side is asked at once.
func (a *attempt) execute(ctx context.Context) ending {
	steps := a.r.scene.steps
	a.idle = false
	// The deadline is Execute's alone: to ask about an effect, or to book one, is never too late.
	info := a.info()
	info.Deadline = a.deadline
	_, err := call(retry.WithAttempt(ctx, info), a, steps.execute)
	if err == nil {
		return a.booked(ctx, retry.ReasonExecuted, "")
	}
	if steps.query == nil || ctx.Err() != nil || !a.unknown(err) {
		return a.end(retry.PhaseExecute, err)
	}
	end, _ := a.ask(ctx, err)
	return end
}

func (a *attempt) unknown(err error) bool {
	class, _, _ := describe(a.r.scene.scene, err)
	return class == retry.ClassUnknown
}

// ask calls Query. redo says that Execute may be called in this attempt; cause is the error of one
// that was, after which it is not called again before a wait.
func (a *attempt) ask(ctx context.Context, cause error) (end ending, redo bool) {
	r := a.r
	answer, err := call(ctx, a, r.scene.steps.query)
	because := func(text string) error {
		if cause == nil {
			return errors.New(text)
		}
		return fmt.Errorf("%w (%s)", cause, text)
	}
	switch {
	case err != nil:
		if err = harmless(r.scene.scene, "query", err); cause != nil {
			// Query's class counts, not the one that cause has.
			both := fmt.Errorf("%w (%w)", cause, err)
			if retry.MarkedClass(err) == retry.ClassPermanent {
				err = retry.Permanent(both)
			} else {
				err = retry.Transient(both)
			}
		}
		return a.end(retry.PhaseQuery, err), false
	case answer == retry.TookEffect:
		return a.booked(ctx, retry.ReasonTookEffect, "Query: it took effect"), false
	case answer == retry.Pending:
		end = a.end(retry.PhaseQuery, retry.Transient(because("query: still pending")))
	case answer == retry.NoEffect:
		over := r.task.Attempt-1-r.task.Uncharged >= r.scene.rules.Policy.MaxAttempts ||
			r.task.Deadline > 0 && r.task.Elapsed+time.Since(r.began) >= r.task.Deadline
		if cause == nil && !over {
			failed, ok := a.advance(ctx, retry.PhaseExecute, retry.ReasonNoEffect, "Query: it did not take effect")
			if ok {
				return ending{}, true
			}
			end = a.end(retry.PhaseQuery, failed.err) // the word goes into the facts instead
			break
		}
		end = a.end(retry.PhaseQuery, retry.Transient(because("query: it did not take effect")))
	case answer == retry.CannotTell:
		end = a.end(retry.PhaseQuery, retry.Unknown(because("query: the other side cannot tell")))
	default:
		end = a.end(retry.PhaseQuery, retry.Unknown(because(fmt.Sprintf("query said %q: must be %s, %s, %s or %s", answer,
			retry.TookEffect, retry.NoEffect, retry.Pending, retry.CannotTell))))
		answer = retry.CannotTell
	}
	end.answer = answer
	return end, false
}

// booked goes on after the effect is certain: it is written down, and then booked.
func (a *attempt) booked(ctx context.Context, why retry.Reason, note string) ending {
	if a.r.scene.steps.callback == nil {
		return ending{phase: retry.PhaseExecute, idle: a.idle, note: note}
	}
	if end, ok := a.advance(ctx, retry.PhaseCallback, why, note); !ok {
		return end
	}
	return a.callback(ctx, note)
}

func (a *attempt) callback(ctx context.Context, note string) ending {
	if _, err := call(ctx, a, a.r.scene.steps.callback); err != nil {
		return a.end(retry.PhaseCallback, harmless(a.r.scene.scene, "callback", err))
	}
	return ending{phase: retry.PhaseCallback, idle: a.idle, note: note}
}

// advance writes a step down. While Postgres is away it tries again for as long as the run holds its
// claim. ok is false where the attempt cannot go on; end is then how it ended. The finisher
// may still get it written: the effect is not forgotten as long as the claim holds.
func (a *attempt) advance(ctx context.Context, to retry.Phase, why retry.Reason, note string) (end ending, ok bool) {
	step := persistence.Step{Claim: a.r.claim, Phase: to, Event: persistence.Event{Reason: why, Actor: a.c.cfg.Name, Note: note}}
	var held bool
	err := backoff(ctx, func() (bool, error) {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		var err error
		held, err = a.c.cfg.Store.Advance(call, step)
		return err == nil, err
	})
	switch {
	case err == nil && held:
		a.r.at.Store(&place{phase: to})
		return ending{}, true
	case err == nil:
		err = retry.ErrLostClaim
	default:
		err = fmt.Errorf("write down %s: %w", why, err)
	}
	return a.end(to, retry.Transient(err)), false
}

// end is an attempt that did not succeed, in that phase.
func (a *attempt) end(phase retry.Phase, err error) ending {
	e := ending{err: err, phase: phase, idle: a.idle}
	if phase != retry.PhaseExecute {
		e.tries = 1
		if at := a.r.at.Load(); at.phase == phase {
			e.tries += at.tries
		}
	}
	return e
}

// harmless is an error of a handler that has no effect to be unsure of.
func harmless(s retry.Scene, handler string, err error) error {
	class, _, _ := describe(s, err)
	err = fmt.Errorf("%s: %w", handler, err)
	if class == retry.ClassPermanent {
		return retry.Permanent(err)
	}
	return retry.Transient(err)
}
