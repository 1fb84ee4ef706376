package publisher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/internal/waker"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// finishPause is the pause between tries to write a result.
const finishPause = 200 * time.Millisecond

// Record makes a call that must not be forgotten, even if this process dies in the
// middle of it: the task is stored first, in INIT and under a lease, and the call
// made second, with the local tier of Do. The lease is renewed for as long as the
// call runs, and no consumer runs the task beside it. Its result:
//
//	nil                   the call succeeded and the task is SUCCESS. Also where an
//	                      equal task with this key has succeeded already: then the
//	                      call was not made, so take nothing from its closure
//	the call's error      it is permanent, or no attempt fits into the deadline
//	                      (then wrapped): the task is FAILED
//	*retry.EscalatedError the task waits for a consumer, or, its outcome unknown
//	                      and the scene saying neither repeat nor ask, for a person
//	*UnsettledError       the call ended, but its task did not take the result: the
//	                      claim was lost (retry.ErrLostClaim), or the store was
//	                      away for Config.RecordTimeout. The error says how the
//	                      call ended
//
// The call was not made, if the error is
//
//	*ExistsError          an equal task with this key has not succeeded. It is
//	                      retry.ErrEscalated unless that task is FAILED or CANCELLED
//	*ConflictError        the key is held by another task
//	retry.ErrNotRecorded  the task could not be stored, or ctx or the lease was over
//	                      once it was (then it is FAILED); joined with the reason
//	retry.ErrInvalid      t is wrong
//	ErrClosed             after Close
//	ctx's error           ctx was over at the start
//
// Record is new work even within an attempt (see Do): its task is stored and goes on by
// itself. Give it a Key, so that an attempt that is repeated meets the task that it
// made; its call is then not made again.
//
// Record does not use the submit queue: nobody could hold a task under a lease there, so
// without Postgres the call is not made.
//
// Where the scene says ReuseKey, a task that has ended gives its key up, and the call
// is made again.
//
// If the process dies, the lease runs out and the outcome counts as unknown: a
// consumer's scan hands the task to a person, or on to consumers where the scene
// says repeat or ask. The same becomes of a task that was stored although the answer was lost
// (retry.ErrNotRecorded), and of one whose call panics, at once.
//
// The context that call gets ends with the cause retry.ErrLostClaim when the claim is
// lost: a person ended the task, or the lease ran out because the store was away. Storing
// the result is given Config.RecordTimeout even if ctx is over.
func (p *Publisher) Record(ctx context.Context, t Task, call func(ctx context.Context) error) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.leave()
	s, err := p.checkInline(&t)
	if err != nil {
		return err
	}
	task, err := p.prepare(t)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r, err := p.begin(ctx, s, task)
	if r == nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit, which go on after this
			_ = p.settle(r, retry.Unknown(errors.New("the call panicked")))
		}
	}()
	a := retry.Attempt{Task: r.claim.ID, Service: p.cfg.Service, Scene: t.Scene, Key: t.Key, Deadline: r.began.Add(r.deadline)}
	r.failed, err = p.try(retry.WithAttempt(r.ctx, a), s, call)
	returned = true
	return p.settle(r, err)
}

// begin stores the task under a claim. Without a record the call is not made, and the
// error is Record's.
func (p *Publisher) begin(ctx context.Context, s *scene, task persistence.NewTask) (*record, error) {
	store, stop := context.WithTimeout(ctx, p.cfg.RecordTimeout)
	defer stop()
	lost := func(err error) (*record, error) { return nil, errors.Join(retry.ErrNotRecorded, err) }
	version, err := p.policyVersion(store, s)
	if err != nil {
		return lost(err)
	}
	task.Status, task.Token, task.Lease, task.By = retry.StatusInit, uuid.NewString(), p.cfg.Lease, p.cfg.Name
	asked := time.Now() // so that the lease ends here before it does there
	in, err := p.cfg.Store.Insert(store, []persistence.NewTask{task})
	if err != nil {
		return lost(err)
	}
	switch got := in[0]; {
	case got.Conflict:
		return nil, &ConflictError{Scene: task.Scene, Key: task.Key, Holder: got.ID}
	case !got.Created && got.Status == retry.StatusSuccess:
		return nil, nil
	case !got.Created || got.Status != retry.StatusInit:
		return nil, &ExistsError{TaskID: got.ID, Status: got.Status}
	}
	r := &record{
		claim: persistence.Claim{ID: in[0].ID, Token: task.Token}, scene: s, version: version, began: asked, deadline: task.Deadline,
	}
	var cancel context.CancelCauseFunc
	r.ctx, cancel = context.WithCancelCause(ctx)
	r.cancel = cancel
	r.expiry = time.AfterFunc(p.cfg.Lease-time.Since(asked), func() { cancel(retry.ErrLostClaim) })
	p.held.add(r)
	if task.Workflow != "" {
		// The deadline is the workflow's, which an earlier task may have fixed.
		stored, err := p.cfg.Store.Get(store, r.claim.ID)
		if err != nil {
			return lost(p.abandon(r, err))
		}
		if stored.DeadlineAt != nil {
			r.deadline = stored.DeadlineAt.Sub(stored.CreatedAt)
		}
	}
	if r.ctx.Err() != nil {
		return lost(p.abandon(r, context.Cause(r.ctx)))
	}
	return r, nil
}

// abandon ends a task whose call is not made after all.
func (p *Publisher) abandon(r *record, why error) error {
	why = fmt.Errorf("not called: %w", why)
	if err := p.settle(r, retry.Permanent(why)); !errors.Is(err, why) || errors.As(err, new(*UnsettledError)) {
		return errors.Join(why, err)
	}
	return why
}

// settle writes how a call ended, and returns what Record does. The lease is renewed
// until it is written.
func (p *Publisher) settle(r *record, outcome error) error {
	defer p.held.remove(r)
	ctx, stop := context.WithTimeout(context.WithoutCancel(r.ctx), p.cfg.RecordTimeout)
	defer stop()
	result := p.resultOf(r, outcome)
	done, err := p.finish(ctx, result)
	switch {
	case err != nil:
		return &UnsettledError{TaskID: r.claim.ID, Outcome: outcome, Cause: err}
	case !done.Applied:
		return &UnsettledError{TaskID: r.claim.ID, Outcome: outcome, Cause: retry.ErrLostClaim}
	case outcome == nil:
		return nil
	case result.Reason == retry.ReasonFailPermanent:
		return outcome
	case result.Status == retry.StatusFailed:
		return fmt.Errorf("task %d stopped, %s: %w", r.claim.ID, result.Reason, outcome)
	case result.Status == retry.StatusWait && !done.Far:
		p.wakes.send([]waker.Wake{{ID: r.claim.ID, Scene: r.scene.Name, Due: time.Now().Add(result.Delay)}})
	}
	return &retry.EscalatedError{TaskID: r.claim.ID, Status: result.Status, Cause: outcome}
}

// resultOf decides what follows.
func (p *Publisher) resultOf(r *record, outcome error) persistence.Result {
	if outcome == nil {
		out := persistence.Result{Claim: r.claim, Status: retry.StatusSuccess, Reason: retry.ReasonSuccess}
		if len(r.failed) > 0 {
			out.Event = &persistence.Event{From: retry.StatusInit, Actor: p.cfg.Name, Note: "before: " + r.failed.list()}
		}
		return out
	}
	class := r.scene.ClassOf(outcome)
	facts := retry.Facts{TaskID: r.claim.ID, Elapsed: time.Since(r.began), Deadline: r.deadline, Class: class, Calls: len(r.failed)}
	facts.RetryAfter, _ = retry.RetryAfter(outcome)
	d := retry.Decide(r.scene.rules, facts)
	out := persistence.Decided(r.claim, facts, d, r.version, p.cfg.Name, outcome.Error())
	out.Event.From, out.Event.Note = retry.StatusInit, r.failed.story()
	return out
}

// finish tries until ctx is over: nobody else can end the claim meanwhile.
func (p *Publisher) finish(ctx context.Context, result persistence.Result) (persistence.Finished, error) {
	for {
		done, err := p.cfg.Store.Finish(ctx, []persistence.Result{result})
		if err == nil {
			return done[0], nil
		}
		select {
		case <-ctx.Done():
			return persistence.Finished{}, err
		case <-time.After(finishPause):
		}
	}
}

// ExistsError says that Record made no call, because an equal task with the same key
// exists and has not succeeded.
type ExistsError struct {
	// TaskID names that task.
	TaskID int64
	// Status that it had.
	Status retry.Status
}

// Error implements error.
func (e *ExistsError) Error() string {
	return "not called: the key is held by task " + strconv.FormatInt(e.TaskID, 10) + ", which is " + string(e.Status)
}

// Unwrap returns retry.ErrEscalated unless the task has ended.
func (e *ExistsError) Unwrap() error {
	if e.Status.Terminal() {
		return nil
	}
	return retry.ErrEscalated
}

// UnsettledError says that a call of Record ended and its task did not take the
// result. Unless somebody ended the task, its lease runs out and its outcome counts as
// unknown.
type UnsettledError struct {
	// TaskID names the task.
	TaskID int64
	// Outcome is the call's error; nil where it succeeded.
	Outcome error
	// Cause is retry.ErrLostClaim, or the store's error.
	Cause error
}

// Error implements error.
func (e *UnsettledError) Error() string {
	how := "the call succeeded"
	if e.Outcome != nil {
		how = "the call failed (" + e.Outcome.Error() + ")"
	}
	return "task " + strconv.FormatInt(e.TaskID, 10) + ": " + how + ", but its result was not recorded: " + e.Cause.Error()
}

// Unwrap returns the cause and, where there is one, the call's error.
func (e *UnsettledError) Unwrap() []error {
	if e.Outcome == nil {
		return []error{e.Cause}
	}
	return []error{e.Cause, e.Outcome}
}
