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
	// Grid is what the topology can express.
	Grid Grid `json:"grid"`
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
	// killed) and those before a person's retry, which grants a new budget.
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
}

// Decision is what follows from Facts under Rules.
type Decision struct {
	Status Status `json:"status"`
	Reason Reason `json:"reason"`
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
func Decide(r Rules, f Facts) Decision {
	p := r.Policy.WithDefaults()
	maxCrashes := r.MaxCrashes
	if maxCrashes <= 0 {
		maxCrashes = DefaultMaxCrashes
	}
	class := f.Class
	if f.Crashed || class == ClassNone {
		class = ClassUnknown
	}
	charged := f.Attempt - f.Uncharged
	stop := func(s Status, why Reason) Decision { return Decision{Status: s, Reason: why} }
	switch {
	case f.Crashed && f.Crashes >= maxCrashes:
		return stop(StatusManualReview, ReasonCrashLoop)
	case class == ClassPermanent:
		return stop(StatusFailed, ReasonFailPermanent)
	case class == ClassUnknown && r.Unknown != UnknownRepeat && r.Unknown != UnknownAsk:
		return stop(StatusManualReview, ReasonManualReview)
	case f.Deadline > 0 && f.Elapsed >= f.Deadline:
		return stop(StatusFailed, ReasonDeadlineExceeded)
	case charged >= p.MaxAttempts:
		return stop(StatusFailed, ReasonAttemptsExhausted)
	}
	d := Decision{
		Status: StatusWait, Reason: ReasonScheduleRetry,
		Ceiling: p.Ceiling(charged), RetryAfter: min(max(f.RetryAfter, 0), MaxDelay),
	}
	// The ceiling grows with the charged attempts, the hash takes the attempt's
	// own number, so that no two attempts of a task share their jitter.
	d.Jittered = p.spread(strconv.FormatInt(f.TaskID, 10), f.Attempt, d.Ceiling)
	d.Delay = r.Grid.Up(max(d.Jittered, d.RetryAfter))
	// Written as a subtraction: Elapsed + Delay could overflow.
	if f.Deadline > 0 && d.Delay > f.Deadline-f.Elapsed {
		return stop(StatusFailed, ReasonDeadlineExceeded)
	}
	return d
}
