package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// Do makes a call, and remembers it if it fails. It calls at once and then, as
// scene.Local says, a few times more after short pauses. Its result:
//
//	nil                   the call succeeded; nothing was stored
//	the call's error      it is permanent; nothing was stored
//	*retry.EscalatedError the task is stored, and the service's consumers go on
//	                      with it (errors.Is ErrEscalated, and the cause). Where
//	                      the outcome is unknown and the scene does not say repeat
//	                      or ask, it is stored for a person (MANUAL_REVIEW)
//	                      While Postgres is away it goes to the submit queue, and a
//	                      consumer stores it later; the error's TaskID may be zero
//	retry.ErrNotRecorded  the task could not be stored, it is the caller's
//	                      again; joined with the call's error and the reason, or
//	                      with both where both servers are away
//	retry.ErrInvalid      t is wrong, see below; ErrClosed: after Close; or ctx's
//	                      error where ctx was over at the start. Nothing was called
//
// What ends the local tier early: an unknown outcome (unless the scene says
// repeat), a wait that the other side asked for (retry.After) and that is longer
// than the pause, ctx, and Close. A task is recorded even if ctx is over by then,
// for at most Config.RecordTimeout, because forgetting it would be worse than
// being late: Postgres gets the first half of that time, the submit queue the rest.
//
// If the key is held by an equal task already, the error names that one, whatever
// its state: it is remembered, but the call was made here nevertheless. Do does
// not look for the key first. If the key is held by another task, the error is
// retry.ErrNotRecorded joined with a *ConflictError.
//
// A success costs under a microsecond and stores nothing. To keep it so, scene,
// key, delays, workflow and headers are checked before the call, but Args are
// encoded only when the task is stored; what does not encode then is
// retry.ErrNotRecorded joined with retry.ErrInvalid.
//
// Within an attempt (retry.AttemptOf) Do calls once and returns what call did: an
// error is the attempt's, whose owner tries again. Trying here as well would multiply
// the calls, and a task of this one's own would go on when the attempt is repeated. That
// holds in a handler, in the call of another Do or Record, and in an HTTP handler
// behind retryhttp.Handler. Where the attempt's deadline is over, nothing is
// called and the error is retry.ErrDeadline, marked as transient.
//
// A panic in call goes through Do and nothing is stored: whether it took effect is
// not known, and the caller's own recovery should see it.
func (p *Publisher) Do(ctx context.Context, t Task, call func(context.Context) error) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.leave()
	s, err := p.checkInline(&t)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	if a, ok := retry.AttemptOf(ctx); ok {
		if !a.Deadline.IsZero() && !began.Before(a.Deadline) {
			return retry.Transient(fmt.Errorf("not called: %w", retry.ErrDeadline))
		}
		return call(ctx)
	}
	a := retry.Attempt{Service: p.cfg.Service, Scene: t.Scene, Key: t.Key, Deadline: began.Add(s.deadline(t))}
	failed, err := p.try(retry.WithAttempt(ctx, a), s, call)
	if err == nil || failed.last() == retry.ClassPermanent {
		return err
	}
	return p.escalate(ctx, s, t, failed, err, time.Since(began))
}

// checkInline checks a task of Do without encoding it.
func (p *Publisher) checkInline(t *Task) (*scene, error) {
	s, err := p.scenes.get(t.Scene)
	var errs fieldErrors
	errs.join(err)
	t.check(&errs)
	if t.Delay > 0 {
		errs.add("delay", t.Delay, "0 with Do, which calls at once")
	}
	if t.Deadline < 0 || t.Deadline > retry.MaxDelay {
		errs.add("deadline", t.Deadline, fmt.Sprintf("0 (the policy's) to %v (ten years)", retry.MaxDelay))
	}
	return s, errs.err()
}

// worthAnother waits before the next local try. It is false where there should
// be none.
func (p *Publisher) worthAnother(ctx context.Context, s *scene, class retry.Class, err error) bool {
	if class != retry.ClassTransient && s.Unknown != retry.UnknownRepeat {
		return false
	}
	if after, ok := retry.RetryAfter(err); ok && after > s.local.Pause {
		return false // it told us when; asking sooner would be hammering
	}
	if s.local.Pause == 0 {
		return ctx.Err() == nil && !p.isClosing()
	}
	timer := time.NewTimer(s.local.Pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	case <-p.closing:
		return false
	}
}

// errTooLate is a task whose deadline leaves no room for an attempt.
var errTooLate = errors.New("no attempt fits into the deadline")

// escalate stores a task whose local tier is spent.
func (p *Publisher) escalate(ctx context.Context, s *scene, t Task, failed tries, cause error, elapsed time.Duration) error {
	// Detached from the start: a context that ends in the middle of the insert
	// would lose the task as well.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.RecordTimeout)
	defer cancel()
	stored, err := p.record(ctx, s, t, failed, cause, elapsed)
	if errors.Is(err, retry.ErrNotRecorded) {
		return errors.Join(err, cause)
	}
	if err != nil {
		return errors.Join(retry.ErrNotRecorded, cause, err)
	}
	return &retry.EscalatedError{TaskID: stored.ID, Status: stored.Status, Cause: cause}
}

func (p *Publisher) record(ctx context.Context, s *scene, t Task, failed tries, cause error, elapsed time.Duration) (stored persistence.Inserted, err error) {
	// The task began with the call, so its time runs since then; its row begins
	// only now and gets what is left.
	deadline := s.deadline(t)
	t.Deadline = 0
	task, err := p.prepare(t)
	if err != nil {
		return stored, err
	}
	class := failed.last()
	// At least a moment: a task for a person may come after its deadline.
	task.Deadline = max(deadline-elapsed, time.Millisecond)
	task.LastError, task.LastClass = cause.Error(), class
	facts := retry.Facts{Elapsed: elapsed, Deadline: deadline, Class: class, Calls: len(failed)}
	facts.RetryAfter, _ = retry.RetryAfter(cause)
	task.Event = &persistence.Event{Class: class, Error: task.LastError, Actor: p.cfg.Name, Note: failed.story(), Facts: &facts}
	// Once without an id, for what becomes of the task while nobody can give it one.
	if err := decide(&task, s, 0); err != nil {
		return stored, err
	}
	in, _, err := p.insert(ctx, []persistence.NewTask{task}, s)
	if err != nil {
		return stored, err
	}
	if in[0].Conflict {
		return stored, &ConflictError{Scene: t.Scene, Key: t.Key, Holder: in[0].ID}
	}
	return in[0], nil
}

// decide decides about an escalation by the facts of its event and its id, and notes the
// version of the scene's rules.
func decide(t *persistence.NewTask, s *scene, version int) error {
	facts := *t.Event.Facts // the store may be reading the old ones
	facts.TaskID = t.ID
	d := retry.Decide(s.rules, facts)
	if d.Status == retry.StatusFailed {
		return fmt.Errorf("%s: %w of %v, %v of which is over", d.Reason, errTooLate, facts.Deadline, facts.Elapsed)
	}
	event := *t.Event
	event.To, event.Reason, event.PolicyVersion, event.Facts, event.Decision = d.Status, d.Reason, version, &facts, &d
	t.Delay, t.Status, t.Phase, t.StopReason, t.Event = d.Delay, d.Status, d.Phase, "", &event
	if d.Status != retry.StatusWait {
		t.StopReason = d.Reason
	}
	return nil
}
