package retry

import (
	"strconv"
	"time"
)

// Rules is the part of a scene that Decide needs. It is what a policy version
// holds: stored once, named by every journal row that it decided.
type Rules struct {
	Policy Policy `json:"policy"`
	// Unknown says what an unknown outcome means. Zero: UnknownReview.
	Unknown UnknownMode `json:"unknown,omitempty"`
	// MaxCrashes bounds the runs that ended without a word. Zero:
	// DefaultMaxCrashes.
	MaxCrashes int `json:"max_crashes,omitempty"`
	// Query and Callback are the policies of these handlers. nil: DefaultPolicy. Their
	// deadlines are not used: the task has one.
	Query    *Policy `json:"query,omitempty"`
	Callback *Policy `json:"callback,omitempty"`
	// Grid is what the topology can express.
	Grid Grid `json:"grid"`
}

// of returns the policy of a phase with its defaults.
func (r Rules) of(p Phase) Policy {
	switch {
	case p == PhaseQuery && r.Query != nil:
		return r.Query.WithDefaults()
	case p == PhaseCallback && r.Callback != nil:
		return r.Callback.WithDefaults()
	case p == PhaseQuery || p == PhaseCallback:
		return DefaultPolicy()
	}
	return r.Policy.WithDefaults()
}

// DefaultMaxCrashes is how often a task's lease may run out before a person
// looks at it.
const DefaultMaxCrashes = 3

// Facts is what was recorded about the attempt that just ended.
type Facts struct {
	// TaskID is the task's id in decimal: the first half of the jitter's hash.
	TaskID int64 `json:"task_id"`
	// Attempt is the number of the attempt that ended; 0 is the inline run.
	Attempt int `json:"attempt"`
	// Uncharged counts the attempts that MaxAttempts does not count: those that
	// crashed (a task with one attempt is not finished by a worker that was
	// killed), those that ran no Execute, and those before a person's retry, which
	// grants a new budget. This attempt is included.
	Uncharged int `json:"uncharged,omitempty"`
	// Crashes counts the runs that ended without a word, this one included.
	Crashes int `json:"crashes,omitempty"`
	// Crashed says that this attempt ended so: the lease ran out.
	Crashed bool `json:"crashed,omitempty"`
	// Elapsed is the time from the task's creation to the end of the attempt,
	// by the database's clock.
	Elapsed time.Duration `json:"elapsed"`
	// Deadline is the time from the task's creation to its deadline. Zero: none.
	Deadline time.Duration `json:"deadline,omitempty"`
	// Class of the error that ended the attempt. Empty counts as unknown.
	Class Class `json:"class"`
	// RetryAfter is the wait that the other side asked for. Zero: none.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Phase of the handler that ended the attempt; of a crash, the task's. Empty:
	// PhaseExecute.
	Phase Phase `json:"phase,omitempty"`
	// Tries counts the tries of Query or Callback since the task came into that
	// phase, this one included unless it crashed. Zero in PhaseExecute.
	Tries int `json:"tries,omitempty"`
	// Idle says that the attempt ran no Execute.
	Idle bool `json:"idle,omitempty"`
	// Answer of Query, where that ended the attempt. Empty where Query failed.
	Answer Answer `json:"answer,omitempty"`
	// Calls is how many calls the local tier made, in attempt 0. Zero: not told.
	Calls int `json:"calls,omitempty"`
}

// Decision is what follows from Facts under Rules.
type Decision struct {
	Status Status `json:"status"`
	Reason Reason `json:"reason"`
	// Phase that the task is in from now on. Empty: PhaseExecute.
	Phase Phase `json:"phase,omitempty"`
	// Delay is the wait after the failure, rounded up to the grid. Zero unless
	// Reason is ReasonScheduleRetry.
	Delay time.Duration `json:"delay,omitempty"`
	// Ceiling, Jittered and RetryAfter are the parts that Delay was made of.
	Ceiling    time.Duration `json:"ceiling,omitempty"`
	Jittered   time.Duration `json:"jittered,omitempty"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
}

// Decide says what becomes of a task after a failed attempt. It is pure: the
// same rules and facts give the same decision for ever. The order of its
// questions is the design's, section 5, with crash_loop before all.
//
// While an effect may be outstanding, or took place and is not booked yet, no stop is
// FAILED: a person has to look.
func Decide(r Rules, f Facts) Decision {
	maxCrashes := r.MaxCrashes
	if maxCrashes <= 0 {
		maxCrashes = DefaultMaxCrashes
	}
	class := f.Class
	if f.Crashed || class == ClassNone {
		class = ClassUnknown
	}
	next := nextPhase(r, f, class)
	p, n := Basis(r, f, next)
	stop := func(why Reason) Decision {
		d := Decision{Status: StatusFailed, Reason: why, Phase: next}
		if next != PhaseExecute || why == ReasonCrashLoop || why == ReasonManualReview {
			d.Status = StatusManualReview
		}
		return d.compact()
	}
	executes := f.Phase.OrExecute() == PhaseExecute
	switch {
	case f.Crashed && f.Crashes >= maxCrashes:
		return stop(ReasonCrashLoop)
	case class == ClassPermanent && f.Answer == "":
		return stop(ReasonFailPermanent)
	case executes && class == ClassUnknown && r.Unknown != UnknownRepeat && r.Unknown != UnknownAsk, f.Answer == CannotTell:
		return stop(ReasonManualReview)
	case f.Deadline > 0 && f.Elapsed >= f.Deadline:
		return stop(ReasonDeadlineExceeded)
	case n >= p.MaxAttempts:
		return stop(ReasonAttemptsExhausted)
	}
	d := Decision{
		Status: StatusWait, Reason: ReasonScheduleRetry, Phase: next,
		Ceiling: p.Ceiling(n), RetryAfter: min(max(f.RetryAfter, 0), MaxDelay),
	}
	// The ceiling grows with the charged attempts, the hash takes the attempt's
	// own number, so that no two attempts of a task share their jitter.
	d.Jittered = p.spread(strconv.FormatInt(f.TaskID, 10), f.Attempt, d.Ceiling)
	d.Delay = r.Grid.Up(max(d.Jittered, d.RetryAfter))
	// Written as a subtraction: Elapsed + Delay could overflow.
	if f.Deadline > 0 && d.Delay > f.Deadline-f.Elapsed {
		return stop(ReasonDeadlineExceeded)
	}
	return d.compact()
}

// compact leaves the usual phase out, which spares most rows of the journal a word.
func (d Decision) compact() Decision {
	if d.Phase == PhaseExecute {
		d.Phase = ""
	}
	return d
}

// nextPhase is the phase that the task is in after the attempt, whether it goes on or stops.
func nextPhase(r Rules, f Facts, class Class) Phase {
	phase := f.Phase.OrExecute()
	switch {
	case f.Answer == NoEffect:
		return PhaseExecute
	case phase == PhaseExecute && class == ClassUnknown && r.Unknown == UnknownAsk:
		return PhaseQuery
	}
	return phase
}

// Basis returns what a delay into phase next is worked out from: the policy, and the number
// of the try that it comes after. Decide compares the same number with MaxAttempts.
func Basis(r Rules, f Facts, next Phase) (Policy, int) {
	next = next.OrExecute()
	switch {
	case next == PhaseExecute:
		return r.of(next), f.Attempt - f.Uncharged
	case next != f.Phase.OrExecute():
		return r.of(next), 0 // its first try is yet to come
	}
	return r.of(next), f.Tries
}
